"""How lists of prompts end that do not end well, by value."""

import pytest

from controller.requests.events import PromptListGrew
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    ErrorDetails,
    FailedMessage,
    StatusMessage,
    Usage,
)
from shared.messages.vectors import packed
from tests.controller.driven_runner import DrivenRunner

# Parts that fail.


def test_a_part_that_fails_does_so_alone(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.speak(first, 0, 1, 2)
    runner.fail(first, "request_failed", "the engine could not", param="prompt")
    runner.answer(second, 7)
    assert runner.reasons() == {0: "error", 1: "stop"}
    assert runner.tokens() == {0: [1, 2], 1: [7]}
    assert runner.errors() == {
        0: ErrorDetails("request_failed", "prompt.0: the engine could not", "prompt")
    }
    assert runner.done().usage == Usage(5, 1, 3)


def test_the_end_says_what_its_parts_say_for_people_once(runner: DrivenRunner) -> None:
    runner.serve(3)
    parts = runner.new_parts()
    for part, warnings in zip(parts, (("no tool",), (), ("no tool", "cut")), strict=True):
        runner.end(part, 0, 1, usage=Usage(5, 1, 1, 1), warnings=warnings)
    assert runner.done().warnings == ("no tool", "cut")
    assert runner.done().usage.reasoning_tokens == 3


def test_choices_of_a_part_that_had_ended_stay_as_they_are(runner: DrivenRunner) -> None:
    runner.serve(2, n=2)
    first, second = runner.new_parts()
    runner.speak(first, 0, 1, choice=1, reason="stop")
    runner.fail(first, "engine_crashed")
    runner.answer(second, 7)
    assert runner.reasons() == {0: "error", 1: "stop", 2: "stop", 3: "stop"}


def test_where_all_parts_fail_the_list_has_failed(runner: DrivenRunner) -> None:
    runner.serve(2)
    for part, code in zip(runner.new_parts(), ("engine_crashed", "request_failed"), strict=True):
        runner.fail(part, code)
    assert runner.failed().code == "engine_crashed"
    (end,) = runner.ended()
    assert isinstance(end, FailedMessage) and (end.attempt, end.worker) == (0, None)


@pytest.mark.parametrize("code", ["invalid_request", "not_supported"])
def test_what_is_wrong_with_the_request_ends_all_of_it(runner: DrivenRunner, code: str) -> None:
    runner.slots = 2
    runner.serve(3)
    first, second = runner.new_parts()
    runner.fail(second, code, "prompt: token id 9 is outside", param="prompt")
    error = runner.failed()
    assert (error.code, error.message) == (code, "prompt.1: token id 9 is outside")
    assert runner.finished() == [(first.request_id, code)]
    runner.pass_time(5)
    assert runner.new_parts() == []


def test_an_error_of_another_field_names_no_prompt(runner: DrivenRunner) -> None:
    runner.serve(2)
    runner.fail(runner.new_parts()[0], "invalid_request", "top_p: no", param="top_p")
    assert runner.failed().message == "top_p: no"


# No room.


def test_where_not_one_finds_room_the_list_is_rejected(runner: DrivenRunner) -> None:
    runner.slots = 2
    runner.serve(5)
    first, second = runner.new_parts()
    runner.fail(first, "queue_full", retry_after_ms=900)
    assert runner.ended() == []
    for _ in range(5):
        runner.hear(StatusMessage(second.request_id, 0, None, "queued", reason="queue_full"))
        runner.pass_time(1)
    assert runner.new_parts() == [], "one may find room still"
    runner.fail(second, "queue_full", retry_after_ms=700)
    assert (runner.failed().code, runner.failed().retry_after_ms) == ("queue_full", 700)


@pytest.mark.parametrize("code", ["queue_full", "memory_pressure", "circuit_open"])
def test_one_that_found_no_room_is_tried_again_when_it_was_told_to(
    runner: DrivenRunner, code: str
) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.say(first, "prefill")
    runner.fail(second, code, retry_after_ms=500)
    runner.pass_time(0.25)
    assert runner.new_parts() == [] and runner.reasons() == {}
    runner.pass_time(0.25)
    (again,) = runner.new_parts()
    assert (again.contents.prompt, again.seed) == ("prompt 1", second.seed)
    assert again.request_id != second.request_id
    runner.answer(again, 7)
    runner.answer(first, 1)
    assert runner.tokens() == {0: [1], 1: [7]}


def test_it_is_tried_again_as_soon_as_another_part_has_ended(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.say(first, "prefill")
    runner.fail(second, "queue_full", retry_after_ms=60_000)
    runner.answer(first, 1)
    assert runner.new_prompts() == ["prompt 1"]


def test_it_is_tried_again_before_those_that_come_after_it(runner: DrivenRunner) -> None:
    runner.slots = 2
    runner.serve(4)
    first, second = runner.new_parts()
    runner.say(first, "prefill")
    runner.fail(second, "queue_full")
    runner.answer(first, 1)
    assert runner.new_prompts() == ["prompt 1", "prompt 2"]


def test_one_that_had_begun_is_not_tried_again_for_want_of_room(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.speak(second, 0, 1)
    runner.fail(second, "memory_pressure")
    runner.answer(first, 1)
    assert runner.reasons() == {0: "stop", 1: "error"} and runner.done()


# Cancelled, and ended from here.


def test_a_cancel_ends_all_parts_and_keeps_what_is_there(runner: DrivenRunner) -> None:
    runner.slots = 2
    whole = runner.serve(4)
    first, second = runner.new_parts()
    runner.answer(first, 1)
    (third,) = runner.new_parts()
    runner.speak(second, 0, 5)
    whole.cancelled = True
    runner.order("cancel", whole)
    assert runner.cancelled() == [second.request_id, third.request_id]
    assert runner.reasons() == {0: "stop", 3: "cancelled"}
    runner.end(second, 1, reason="cancelled", usage=Usage(5, 1, 1))
    runner.end(third, 0, reason="cancelled", usage=Usage(0, 0, 0))
    assert runner.reasons() == {0: "stop", 1: "cancelled", 2: "cancelled", 3: "cancelled"}
    assert runner.done().usage.completion_tokens == 2
    assert runner.new_parts() == []


def test_a_cancelled_part_that_finds_no_room_is_not_tried_again(runner: DrivenRunner) -> None:
    whole = runner.serve(2)
    first, second = runner.new_parts()
    runner.say(first, "prefill")
    whole.cancelled = True
    runner.order("cancel", whole)
    runner.fail(second, "queue_full")
    runner.end(first, 0, reason="cancelled")
    runner.pass_time(5)
    assert runner.new_parts() == [] and runner.reasons() == {0: "cancelled", 1: "error"}


def test_a_list_of_which_nothing_was_begun_is_cancelled_with_its_parts(
    runner: DrivenRunner,
) -> None:
    whole = runner.serve(2, stream=False)
    parts = runner.new_parts()
    runner.order("cancel", whole)
    for part in parts:
        runner.end(part, 0, reason="cancelled", usage=Usage(0, 0, 0))
    assert [output.finish_reason for output in runner.done().outputs] == ["cancelled"] * 2


def test_the_leader_may_end_all_of_it(runner: DrivenRunner) -> None:
    runner.slots = 1
    whole = runner.serve(3)
    (part,) = runner.new_parts()
    runner.speak(part, 0, 1)
    runner.order("fail", whole, error=ErrorDetails.of("draining", "it shut down"))
    assert runner.failed().code == "draining"
    assert runner.finished() == [(part.request_id, "draining")]
    runner.speak(part, 1, 2)
    runner.order("fail", whole, error=ErrorDetails.of("draining", "it shut down"))
    assert len(runner.ended()) == 1 and isinstance(runner.told()[-1], FailedMessage)


def test_parts_that_never_went_end_at_the_deadline(runner: DrivenRunner) -> None:
    runner.slots = 1
    runner.serve(3, timeout_ms=2000)
    (first,) = runner.new_parts()
    runner.speak(first, 0, 1)
    runner.pass_time(1.75)
    assert runner.errors() == {}
    runner.pass_time(0.25)
    assert runner.reasons() == {1: "error", 2: "error"}
    assert {error.code for error in runner.errors().values()} == {"deadline_exceeded"}
    assert runner.new_parts() == [] and runner.ended() == []
    runner.fail(first, "deadline_exceeded")
    assert runner.failed().code == "deadline_exceeded"


def test_an_answer_that_fits_into_no_message_is_an_error(runner: DrivenRunner) -> None:
    runner.serve(2, stream=False)
    runner.limit_messages(1000)
    for part in runner.new_parts():
        runner.answer(part, *range(100))
    assert runner.failed().code == "answer_too_large"
    assert [type(end) for end in runner.ended()] == [FailedMessage]


def test_a_prompt_that_is_too_long_is_not_tried_for_all_its_choices(runner: DrivenRunner) -> None:
    runner.slots = runner.most = 2
    runner.serve(2, n=8)
    (first,) = runner.new_parts()
    runner.fail(first, "context_length_exceeded", "the prompt has 9000 tokens", param="prompt")
    (other,) = runner.new_parts()
    assert other.contents.prompt == "prompt 1", "not the other three of the first prompt"


def test_a_whole_answer_that_grows_too_large_is_not_collected_to_its_end(
    runner: DrivenRunner,
) -> None:
    runner.limit_messages(500)
    runner.serve(2, stream=False)
    first, _ = runner.new_parts()
    for index in range(200):
        runner.speak(first, index, index)
    assert runner.failed().code == "answer_too_large"


def test_vectors_that_fit_into_no_message_are_not_collected_to_their_end(
    runner: DrivenRunner,
) -> None:
    runner.limit_messages(5000)
    runner.serve(3, stream=False)
    for part in runner.new_parts()[:2]:
        vector = packed([0.0] * 1000)
        output = ChoiceOutput(0, 0, [], "", finish_reason="stop", embedding=vector)
        runner.run(part)
        runner.hear(ChunkMessage(part.request_id, part.attempt, None, output))
    assert runner.failed().code == "answer_too_large"


def test_the_leader_hears_how_much_is_kept_of_a_stream(runner: DrivenRunner) -> None:
    whole = runner.serve(2)
    first, _ = runner.new_parts()
    for index in range(10_000):
        runner.speak(first, index, index)
    runner.pass_time(0.25)
    (grew,) = [event for event in runner.events if isinstance(event, PromptListGrew)]
    assert grew.key == whole.key and grew.more_bytes >= 10_000 * 100
    runner.pass_time(1)
    assert len([event for event in runner.events if isinstance(event, PromptListGrew)]) == 1


def test_a_whole_answer_of_many_small_pieces_that_fits_is_not_refused(
    runner: DrivenRunner,
) -> None:
    runner.limit_messages(10_000)
    runner.serve(2, stream=False)
    first, second = runner.new_parts()
    for index in range(300):
        runner.speak(first, index, index)
    runner.end(first, 300)
    runner.answer(second, 7)
    assert runner.done().outputs[0].token_ids == list(range(300))
