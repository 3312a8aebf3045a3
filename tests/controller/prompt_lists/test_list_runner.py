"""Lists of prompts, and choices that no worker decodes at once, by value: which parts go when, and
what the client hears of them as one stream."""

import pytest

from controller.prompt_lists.list_parts import first_part, part_id
from controller.prompt_lists.list_runner import MAX_UNPLACED
from shared.bus import IncomingMessage
from shared.ids import ClientName, RequestId
from shared.messages.dispatch import choice_seed
from shared.messages.stream import (
    KEEP_ALIVE_S,
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    StatusMessage,
    StatusName,
    Timings,
    Usage,
)
from shared.messages.vectors import packed
from tests.controller.driven_runner import RUNNER, W1, DrivenRunner
from tests.controller.values import ADA, request

# Parts.


def test_each_prompt_is_a_request_of_its_own(runner: DrivenRunner) -> None:
    whole = runner.serve(3, n=2, session_id="s", max_tokens=7, stream=False)
    parts = runner.new_parts()
    for number, part in enumerate(parts):
        body = part.contents
        assert (body.prompt, body.n, body.max_tokens) == (f"prompt {number}", 2, 7)
        assert (body.stream, body.multiplex, body.session_id, body.request_id) == (
            True, True, None, None
        )  # fmt: skip
        assert part.seed == choice_seed(whole.seed, 2 * number)
        assert (part.inboxes, part.part_of) == ([f"{RUNNER}.parts"], "r")
        assert (part.session, part.affinity, part.client) == (None, None, whole.client)
    assert len({part.request_id for part in parts} | {"r"}) == 4


def test_more_choices_than_a_worker_decodes_at_once_are_parts_too(runner: DrivenRunner) -> None:
    runner.slots, runner.most = 9, 2
    whole = runner.serve(prompt="x", n=5)
    parts = runner.new_parts()
    assert [part.contents.n for part in parts] == [2, 2, 1]
    assert [part.seed for part in parts] == [choice_seed(whole.seed, first) for first in (0, 2, 4)]
    assert {part.contents.prompt for part in parts} == {"x"}
    for number, part in enumerate(parts):
        runner.answer(part, 10 * number)
    assert runner.tokens() == {0: [0], 1: [0], 2: [10], 3: [10], 4: [20]}
    assert runner.done().usage == Usage(5, 1, 5), "the prompt counts once"


def test_choices_of_each_prompt_are_split_alike(runner: DrivenRunner) -> None:
    runner.slots, runner.most = 9, 2
    runner.serve(2, n=3)
    parts = runner.new_parts()
    assert [(str(part.contents.prompt), part.contents.n) for part in parts] == [
        ("prompt 0", 2), ("prompt 0", 1), ("prompt 1", 2), ("prompt 1", 1)
    ]  # fmt: skip


def test_texts_to_embed_go_in_parts_of_64_and_come_back_under_their_numbers(
    runner: DrivenRunner,
) -> None:
    runner.slots, runner.most = 1000, 64
    inputs = [f"text {number}" for number in range(150)]
    runner.serve(prompt=None, input=inputs, dimensions=8)
    parts = runner.new_parts()
    assert [part.contents.input for part in parts] == [inputs[:64], inputs[64:128], inputs[128:]]
    assert {(part.contents.dimensions, part.contents.prompt) for part in parts} == {(8, None)}
    vector = packed([0.5])
    for part in parts:
        for choice in range(part.contents.choices):
            output = ChoiceOutput(choice, 0, [], "", finish_reason="stop", embedding=vector)
            runner.hear(ChunkMessage(part.request_id, 1, W1, output))
        times = Timings(0, 0, 0, 0)
        runner.hear(DoneMessage(part.request_id, 1, W1, Usage(64, 0, 0), times))
    chunks = [each.output for each in runner.told() if isinstance(each, ChunkMessage)]
    assert sorted(output.choice for output in chunks) == list(range(150))
    assert {output.embedding for output in chunks} == {vector}
    assert runner.done().usage == Usage(192, 0, 0)


def test_a_text_that_cannot_be_embedded_is_named_by_its_number_in_the_list(
    runner: DrivenRunner,
) -> None:
    runner.slots, runner.most = 1000, 64
    runner.serve(prompt=None, input=["text"] * 150)
    part = runner.new_parts()[1]
    runner.fail(part, "invalid_request", "input.3: no", param="input.3")
    assert (runner.failed().param, runner.failed().message) == ("input.67", "input.67: no")


def test_ids_of_parts_are_the_same_whoever_serves_the_list(runner: DrivenRunner) -> None:
    other = DrivenRunner(runner.clock)
    found = []
    for each in (runner, other):
        each.serve(2)
        found.append([part.request_id for part in each.new_parts()])
    wanted = [part_id((ADA, RequestId("r")), range(number, number + 1)) for number in (0, 1)]
    assert found[0] == found[1] == wanted


def test_other_parts_have_other_ids(runner: DrivenRunner) -> None:
    """Workers tell other sizes after the leader has changed: what is left of the parts before is
    not taken for these."""
    other = DrivenRunner(runner.clock)
    found = set()
    for each, most in ((runner, 2), (other, 4)):
        each.slots, each.most = 8, most
        each.serve(1, n=4)
        found |= {part.request_id for part in each.new_parts()}
    assert len(found) == 3


def test_no_other_part_has_the_id_of_one() -> None:
    keys = [(ADA, RequestId("r")), (ADA, RequestId("s")), (ClientName("bob"), RequestId("r"))]
    choices = [range(0, 1), range(0, 2), range(1, 2)]
    ids = {part_id(key, some, tries) for key in keys for some in choices for tries in (0, 1)}
    assert len(ids) == 18


def test_the_first_prompt_alone_is_known_for_who_asks_where_it_would_go() -> None:
    part = first_part(request(prompt=["x", "y"], session_id="s"), 0.0)
    assert (part.contents.prompt, part.session) == ("x", None)


def test_the_time_before_it_began_counts(runner: DrivenRunner) -> None:
    whole = request(prompt=["x", "y"], timeout_ms=5000, now=runner.clock.now - 2)
    runner.order("serve", whole)
    (first, _) = runner.new_parts()
    assert first.deadline == whole.deadline == runner.clock.now + 3


# Their pace.


def test_no_more_go_than_workers_have_places_and_in_their_order(runner: DrivenRunner) -> None:
    runner.slots = 3
    runner.serve(5)
    parts = runner.new_parts()
    assert [part.contents.prompt for part in parts] == ["prompt 0", "prompt 1", "prompt 2"]
    runner.answer(parts[1], 1)
    assert runner.new_prompts() == ["prompt 3"]
    for part in (parts[0], parts[2]):
        runner.answer(part, 1)
    assert runner.new_prompts() == ["prompt 4"]


def test_each_choice_takes_a_place(runner: DrivenRunner) -> None:
    runner.slots = 4
    runner.serve(3, n=2)
    assert runner.new_prompts() == ["prompt 0", "prompt 1"]


def test_one_goes_where_there_is_no_place_at_all(runner: DrivenRunner) -> None:
    runner.slots = runner.most = 0
    runner.serve(3)
    assert runner.new_prompts() == ["prompt 0"]


def test_so_many_seek_a_worker_at_a_time(runner: DrivenRunner) -> None:
    runner.slots = 100
    runner.serve(40)
    parts = runner.new_parts()
    assert len(parts) == MAX_UNPLACED
    runner.run(*parts[:5])
    runner.say(parts[0], "prefill")
    assert len(runner.new_parts()) == 5


def test_parts_that_workers_have_already_do_not_seek_one(runner: DrivenRunner) -> None:
    """They were begun for the leader before."""
    runner.slots = 100
    for number in range(40):
        part = request(part_id((ADA, RequestId("r")), range(number, number + 1)))
        part.state, part.worker, part.attempt = "running", W1, 1
        runner.known[part.key] = part
    runner.serve(40)
    assert len(runner.new_parts()) == 40


def test_places_are_counted_again_from_time_to_time(runner: DrivenRunner) -> None:
    runner.slots = 1
    runner.serve(3)
    (first,) = runner.new_parts()
    runner.say(first, "accepted")
    runner.slots = 3
    runner.pass_time(0.75)
    assert runner.new_parts() == []
    runner.pass_time(0.5)
    assert runner.new_prompts() == ["prompt 1", "prompt 2"]


# What the client hears.


def test_chunks_of_all_parts_are_one_stream(runner: DrivenRunner) -> None:
    runner.serve(2, n=2)
    first, second = runner.new_parts()
    for index in range(3):
        for choice in range(2):
            runner.speak(first, index, 10 * choice + index, choice=choice)
            runner.speak(second, index, 20 + 10 * choice + index, choice=choice)
    for part in (second, first):
        runner.speak(part, 3, choice=1, reason="length")
        runner.end(part, 3, usage=Usage(5, 1, 6))
    assert runner.tokens() == {
        choice: [10 * choice + index for index in range(3)] for choice in range(4)
    }
    assert runner.reasons() == {0: "stop", 1: "length", 2: "stop", 3: "length"}
    end = runner.done()
    assert (end.usage, end.outputs) == (Usage(10, 2, 12), ())
    assert {(each.request_id, each.attempt, each.worker) for each in runner.told()} == {
        ("r", 0, None)
    }
    assert runner.ended() == [end]


def test_the_usage_of_the_first_prompt_comes_with_the_first_chunk(runner: DrivenRunner) -> None:
    runner.serve(2)
    for part in runner.new_parts():
        runner.speak(part, 0, 1, usage=Usage(5, 1, 1))
        runner.speak(part, 1, 2)
    assert [chunk.usage for chunk in runner.chunks()] == [Usage(5, 1, 0), None, None, None]


def test_without_streaming_one_message_has_all_choices_whole(runner: DrivenRunner) -> None:
    runner.serve(2, n=2, stream=False)
    first, second = runner.new_parts()
    runner.answer(second, 7, 8)
    runner.speak(first, 0, 5)
    runner.pass_time(5)
    assert runner.told() == []
    runner.speak(first, 1, reason="stop")
    runner.end(first, 0, 5, choice=1, usage=Usage(5, 1, 2))
    (end,) = runner.told()
    assert isinstance(end, DoneMessage)
    assert [output.choice for output in end.outputs] == [0, 1, 2, 3]
    assert [output.token_ids for output in end.outputs] == [[5], [5], [7, 8], [7, 8]]
    assert [output.text for output in end.outputs] == ["<5>", "<5>", "<7><8>", "<7><8>"]
    assert end.usage == Usage(10, 2, 6)


def test_the_timings_are_those_of_the_first_token_and_the_time_since(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.clock.now += 2
    runner.end(second, 0, 1, timings=Timings(5, 60, 900, 0))
    runner.end(first, 0, 1, timings=Timings(1, 30, 400, 10))
    assert runner.done().timings == Timings(1, 30, 400, 1600)


def test_its_client_hears_the_seed_when_a_worker_has_accepted_a_part(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    assert runner.told() == []
    for part in (first, second):
        runner.say(part, "accepted")
    assert runner.told() == [StatusMessage(RequestId("r"), 0, None, "accepted", seed=5)]


def test_a_part_that_is_queued_here_was_not_accepted(runner: DrivenRunner) -> None:
    runner.serve(2)
    part, _ = runner.new_parts()
    runner.hear(StatusMessage(part.request_id, 0, None, "queued", reason="queue_full"))
    assert runner.told() == []


def test_the_route_of_a_part_is_told_with_the_end(runner: DrivenRunner) -> None:
    runner.serve(2, debug=True)
    for number, part in enumerate(runner.new_parts()):
        runner.end(part, 0, 1, route={"worker": f"w{number}"})
    assert runner.done().route == {"worker": "w0"}


def test_a_stream_without_tokens_says_again_and_again_how_it_stands(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    said: list[StatusName] = ["accepted", "loading", "prefill"]
    for status in said:
        runner.say(first, status)
        runner.pass_time(KEEP_ALIVE_S)
    assert runner.statuses() == ["accepted", "queued", "loading", "prefill"]
    runner.speak(second, 0, 1)
    for _ in range(2):
        runner.say(first, "prefill")
        runner.pass_time(KEEP_ALIVE_S)
    assert runner.statuses()[4:] == ["running", "running"]


def test_what_an_attempt_that_was_given_up_still_says_is_not_passed_on(
    runner: DrivenRunner,
) -> None:
    runner.serve(2)
    first, _ = runner.new_parts()
    runner.run(first)
    runner.known[first.key].attempt = 2
    runner.hear(ChunkMessage(first.request_id, 1, W1, ChoiceOutput(0, 0, [99], "<99>")))
    assert runner.chunks() == []
    runner.hear(ChunkMessage(first.request_id, 2, W1, ChoiceOutput(0, 0, [1], "<1>")))
    assert runner.tokens() == {0: [1]}


def test_what_is_no_message_of_a_stream_is_counted_and_logged_once(
    runner: DrivenRunner, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        runner.receive(IncomingMessage(f"{RUNNER}.parts", "", b"junk"))
    assert runner.refused.counts.total() == 100
    assert len(caplog.records) == 1
