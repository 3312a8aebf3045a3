"""How lists of prompts end that do not end well, by value; and what is done about parts that get
lost."""

import pytest

from controller import lists
from controller.requests.events import Published
from shared.bus import Message
from shared.messages.stream import Failed, Status, StreamError, Usage
from tests.controller.driven_runner import INBOX, LATER, RUNNER, DrivenRunner
from tests.worker.virtual_time import Clock


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> DrivenRunner:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr(lists, "awake_or_asleep", clock)
    return DrivenRunner(clock)


# Parts that fail.


def test_a_part_that_fails_does_so_alone(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.speak(first, 0, 1, 2)
    driven.fail(first, "request_failed", "the engine could not", param="prompt")
    driven.answer(second, 7)
    assert driven.reasons() == {0: "error", 1: "stop"}
    assert driven.tokens() == {0: [1, 2], 1: [7]}
    assert driven.errors() == {
        0: StreamError("request_failed", "prompt.0: the engine could not", "prompt")
    }
    assert driven.done().usage == Usage(5, 1, 3)


def test_choices_of_a_part_that_had_ended_stay_as_they_are(driven: DrivenRunner) -> None:
    driven.serve(2, n=2)
    first, second = driven.new_parts()
    driven.speak(first, 0, 1, choice=1, reason="stop")
    driven.fail(first, "engine_crashed")
    driven.answer(second, 7)
    assert driven.reasons() == {0: "error", 1: "stop", 2: "stop", 3: "stop"}


def test_where_all_parts_fail_the_list_has_failed(driven: DrivenRunner) -> None:
    driven.serve(2)
    for part, code in zip(driven.new_parts(), ("engine_crashed", "request_failed"), strict=True):
        driven.fail(part, code)
    assert driven.failed().code == "engine_crashed"
    (end,) = driven.ended()
    assert isinstance(end, Failed) and (end.attempt, end.worker) == (0, None)


@pytest.mark.parametrize("code", ["invalid_request", "not_supported"])
def test_what_is_wrong_with_the_request_ends_all_of_it(driven: DrivenRunner, code: str) -> None:
    driven.slots = 2
    driven.serve(3)
    first, second = driven.new_parts()
    driven.fail(second, code, "prompt: token id 9 is outside", param="prompt")
    error = driven.failed()
    assert (error.code, error.message) == (code, "prompt.1: token id 9 is outside")
    assert driven.finished() == [(first.request_id, code)]
    driven.pass_time(5)
    assert driven.new_parts() == []


def test_an_error_of_another_field_names_no_prompt(driven: DrivenRunner) -> None:
    driven.serve(2)
    driven.fail(driven.new_parts()[0], "invalid_request", "top_p: no", param="top_p")
    assert driven.failed().message == "top_p: no"


# No room.


def test_where_not_one_finds_room_the_list_is_rejected(driven: DrivenRunner) -> None:
    driven.slots = 2
    driven.serve(5)
    first, second = driven.new_parts()
    driven.fail(first, "queue_full", retry_after_ms=900)
    assert driven.ended() == []
    for _ in range(5):
        driven.hear(Status(second.request_id, 0, None, "queued", reason="queue_full"))
        driven.pass_time(1)
    assert driven.new_parts() == [], "one may find room still"
    driven.fail(second, "queue_full", retry_after_ms=700)
    assert (driven.failed().code, driven.failed().retry_after_ms) == ("queue_full", 700)


@pytest.mark.parametrize("code", ["queue_full", "memory_pressure", "circuit_open"])
def test_one_that_found_no_room_is_tried_again_when_it_was_told_to(
    driven: DrivenRunner, code: str
) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.say(first, "prefill")
    driven.fail(second, code, retry_after_ms=500)
    driven.pass_time(0.25)
    assert driven.new_parts() == [] and driven.reasons() == {}
    driven.pass_time(0.25)
    (again,) = driven.new_parts()
    assert (again.contents.prompt, again.seed) == ("prompt 1", second.seed)
    assert again.request_id != second.request_id
    driven.answer(again, 7)
    driven.answer(first, 1)
    assert driven.tokens() == {0: [1], 1: [7]}


def test_it_is_tried_again_as_soon_as_another_part_has_ended(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.say(first, "prefill")
    driven.fail(second, "queue_full", retry_after_ms=60_000)
    driven.answer(first, 1)
    assert driven.new_prompts() == ["prompt 1"]


def test_it_is_tried_again_before_those_that_come_after_it(driven: DrivenRunner) -> None:
    driven.slots = 2
    driven.serve(4)
    first, second = driven.new_parts()
    driven.say(first, "prefill")
    driven.fail(second, "queue_full")
    driven.answer(first, 1)
    assert driven.new_prompts() == ["prompt 1", "prompt 2"]


def test_one_that_had_begun_is_not_tried_again_for_want_of_room(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.speak(second, 0, 1)
    driven.fail(second, "memory_pressure")
    driven.answer(first, 1)
    assert driven.reasons() == {0: "stop", 1: "error"} and driven.done()


# Cancelled, and ended from here.


def test_a_cancel_ends_all_parts_and_keeps_what_is_there(driven: DrivenRunner) -> None:
    driven.slots = 2
    whole = driven.serve(4)
    first, second = driven.new_parts()
    driven.answer(first, 1)
    (third,) = driven.new_parts()
    driven.speak(second, 0, 5)
    whole.cancelled = True
    driven.order("cancel", whole)
    assert driven.cancelled() == [second.request_id, third.request_id]
    assert driven.reasons() == {0: "stop", 3: "cancelled"}
    driven.end(second, 1, reason="cancelled", usage=Usage(5, 1, 1))
    driven.end(third, 0, reason="cancelled", usage=Usage(0, 0, 0))
    assert driven.reasons() == {0: "stop", 1: "cancelled", 2: "cancelled", 3: "cancelled"}
    assert driven.done().usage.completion_tokens == 2
    assert driven.new_parts() == []


def test_a_cancelled_part_that_finds_no_room_is_not_tried_again(driven: DrivenRunner) -> None:
    whole = driven.serve(2)
    first, second = driven.new_parts()
    driven.say(first, "prefill")
    whole.cancelled = True
    driven.order("cancel", whole)
    driven.fail(second, "queue_full")
    driven.end(first, 0, reason="cancelled")
    driven.pass_time(5)
    assert driven.new_parts() == [] and driven.reasons() == {0: "cancelled", 1: "error"}


def test_a_list_of_which_nothing_was_begun_is_cancelled_with_its_parts(
    driven: DrivenRunner,
) -> None:
    whole = driven.serve(2, stream=False)
    parts = driven.new_parts()
    driven.order("cancel", whole)
    for part in parts:
        driven.end(part, 0, reason="cancelled", usage=Usage(0, 0, 0))
    assert [output.finish_reason for output in driven.done().outputs] == ["cancelled"] * 2


def test_the_leader_may_end_all_of_it(driven: DrivenRunner) -> None:
    driven.slots = 1
    whole = driven.serve(3)
    (part,) = driven.new_parts()
    driven.speak(part, 0, 1)
    driven.order("fail", whole, error=StreamError.of("draining", "it shut down"))
    assert driven.failed().code == "draining"
    assert driven.finished() == [(part.request_id, "draining")]
    driven.speak(part, 1, 2)
    driven.order("fail", whole, error=StreamError.of("draining", "it shut down"))
    assert len(driven.ended()) == 1 and isinstance(driven.told()[-1], Failed)


def test_parts_that_never_went_end_at_the_deadline(driven: DrivenRunner) -> None:
    driven.slots = 1
    driven.serve(3, timeout_ms=2000)
    (first,) = driven.new_parts()
    driven.speak(first, 0, 1)
    driven.pass_time(1.75)
    assert driven.errors() == {}
    driven.pass_time(0.25)
    assert driven.reasons() == {1: "error", 2: "error"}
    assert {error.code for error in driven.errors().values()} == {"deadline_exceeded"}
    assert driven.new_parts() == [] and driven.ended() == []
    driven.fail(first, "deadline_exceeded")
    assert driven.failed().code == "deadline_exceeded"


def test_an_answer_that_fits_into_no_message_is_an_error(driven: DrivenRunner) -> None:
    driven.serve(2, stream=False)
    driven.limit_messages(1000)
    for part in driven.new_parts():
        driven.answer(part, *range(100))
    assert driven.failed().code == "answer_too_large"
    assert [type(end) for end in driven.ended()] == [Failed]


# Who listens.


def test_a_list_that_nobody_listens_to_any_more_ends(driven: DrivenRunner) -> None:
    driven.slots = 1
    driven.serve(3)
    (part,) = driven.new_parts()
    driven.say(part, "accepted")
    driven.clock.now += 0.5
    driven.speak(part, 0, 1)
    assert driven.miss() and driven.ended() == [], "its client may be on its way back"
    driven.pass_time(0.5)
    assert driven.miss() and driven.ended() == []
    driven.pass_time(0.5)
    assert driven.miss()
    assert driven.finished() == [(part.request_id, "client_gone")]
    assert driven.told()[-1] == driven.ended()[0]
    driven.pass_time(5)
    assert driven.new_parts() == []


def test_one_who_is_back_is_no_longer_missed(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, _ = driven.new_parts()
    driven.clock.now += 0.5
    driven.speak(first, 0, 1)
    assert driven.miss()
    driven.pass_time(1.0)  # probes that find somebody
    driven.clock.now += 0.5
    driven.speak(first, 1, 2)
    assert driven.miss() and driven.ended() == []


def test_while_somebody_else_listens_it_goes_on(driven: DrivenRunner) -> None:
    whole = driven.serve(2)
    first, second = driven.new_parts()
    driven.order("attach", whole, inbox=LATER)
    for index in range(4):
        driven.clock.now += 0.5
        driven.speak(first, index, index)
        driven.miss(INBOX)
    driven.answer(second, 1)
    driven.end(first, 4)
    assert driven.done(LATER) and len(driven.chunks(INBOX)) < len(driven.chunks(LATER))


def test_who_waits_for_a_whole_answer_is_never_looked_after(driven: DrivenRunner) -> None:
    driven.serve(2, stream=False)
    first, second = driven.new_parts()
    for index in range(20):
        driven.clock.now += 0.5
        driven.speak(first, index, 1)
    driven.answer(second, 1)
    driven.end(first, 20)
    assert [reply for _, _, reply in driven.put] == [""]


def test_after_a_new_connection_others_may_be_on_their_way_back_too(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, _ = driven.new_parts()
    driven.connections += 1
    for index in range(5):
        driven.clock.now += 0.5
        driven.speak(first, index, 1)
        assert driven.miss()
    assert driven.ended() == []
    for index in range(5, 9):
        driven.clock.now += 0.5
        driven.speak(first, index, 1)
        driven.miss()
    assert [type(end) for end in driven.ended()] == [Failed]


# What got lost.


def test_a_part_of_which_nothing_is_heard_is_asked_for_again(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    for part in (first, second):
        driven.say(part, "accepted")
    driven.run(first, second)
    driven.pass_time(2.75)
    driven.say(second, "prefill")
    assert driven.new_parts() == []
    driven.pass_time(1)
    (again,) = driven.new_parts()
    assert (again.key, again.fingerprint) == (first.key, first.fingerprint)


def test_a_gap_is_repaired_before_the_client_hears_of_it(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.say(first, "accepted")
    driven.speak(first, 0, 1)
    driven.speak(first, 2, 3)  # what was between them got lost
    driven.answer(second, 7)
    driven.pass_time(0.75)
    assert [part.key for part in driven.new_parts()] == [first.key]
    for index in range(3):
        driven.speak(first, index, index + 1)
    driven.end(first, 3)
    assert driven.tokens() == {0: [1, 2, 3], 1: [7]} and driven.done()


def test_a_part_of_which_nothing_comes_for_long_is_given_up(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.answer(second, 7)
    driven.say(first, "accepted")
    driven.pass_time(16)
    assert driven.finished() == [(first.request_id, "stream_silent")]
    assert driven.errors()[0].code == "stream_silent" and driven.done()


def test_a_part_whose_worker_lost_sight_of_us_is_asked_again(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.answer(second, 7)
    driven.speak(first, 0, 1)
    driven.fail(first, "client_gone")
    driven.pass_time(1)
    (again,) = driven.new_parts()
    assert again.request_id != first.request_id
    assert (again.contents.prompt, again.seed) == ("prompt 0", first.seed)
    driven.speak(again, 0, 1)
    assert len(driven.chunks()) == 2, "that was told before"
    driven.end(again, 1, 2)
    assert driven.tokens() == {0: [1, 2], 1: [7]} and driven.done()


def test_it_is_asked_again_so_often_and_then_fails(driven: DrivenRunner) -> None:
    driven.serve(2)
    part, other = driven.new_parts()
    driven.answer(other, 7)
    for _ in range(3):
        driven.fail(part, "client_gone")
        driven.pass_time(1)
        (part,) = driven.new_parts()
    driven.fail(part, "client_gone")
    assert driven.errors()[0].code == "stream_broken" and driven.done()


def test_what_cannot_be_read_does_no_harm(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.runner.on_message(Message(f"{RUNNER}.parts", "", b"no message"))
    driven.hear(Failed(None, 0, None, StreamError.of("internal_error", "whose?")))
    for part in (first, second):
        driven.answer(part, 1)
    assert driven.done() and all(isinstance(each, Published) for each in driven.events[:2])
