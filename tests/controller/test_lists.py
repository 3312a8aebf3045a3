"""Lists of prompts, and choices that no worker decodes at once, by value: which parts go when, and
what the client hears of them as one stream."""

import pytest

from controller import lists
from controller.lists import MOST_SEEKING, first_part, part_id
from shared.ids import ClientName, RequestId
from shared.messages.dispatch import choice_seed
from shared.messages.stream import (
    KEEP_ALIVE_S,
    ChoiceOutput,
    Chunk,
    Done,
    Status,
    StatusName,
    Timings,
    Usage,
)
from tests.controller.driven_runner import INBOX, LATER, RUNNER, W1, DrivenRunner
from tests.controller.values import ADA, request
from tests.worker.virtual_time import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr(lists, "awake_or_asleep", clock)
    return clock


@pytest.fixture
def driven(clock: Clock) -> DrivenRunner:
    return DrivenRunner(clock)


# Parts.


def test_each_prompt_is_a_request_of_its_own(driven: DrivenRunner) -> None:
    whole = driven.serve(3, n=2, session_id="s", max_tokens=7, stream=False)
    parts = driven.new_parts()
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


def test_more_choices_than_a_worker_decodes_at_once_are_parts_too(clock: Clock) -> None:
    driven = DrivenRunner(clock, slots=9, most=2)
    whole = driven.serve(prompt="x", n=5)
    parts = driven.new_parts()
    assert [part.contents.n for part in parts] == [2, 2, 1]
    assert [part.seed for part in parts] == [choice_seed(whole.seed, first) for first in (0, 2, 4)]
    assert {part.contents.prompt for part in parts} == {"x"}
    for number, part in enumerate(parts):
        driven.answer(part, 10 * number)
    assert driven.tokens() == {0: [0], 1: [0], 2: [10], 3: [10], 4: [20]}
    assert driven.done().usage == Usage(5, 1, 5), "the prompt counts once"


def test_choices_of_each_prompt_are_split_alike(clock: Clock) -> None:
    driven = DrivenRunner(clock, slots=9, most=2)
    driven.serve(2, n=3)
    parts = driven.new_parts()
    assert [(str(part.contents.prompt), part.contents.n) for part in parts] == [
        ("prompt 0", 2), ("prompt 0", 1), ("prompt 1", 2), ("prompt 1", 1)
    ]  # fmt: skip


def test_ids_of_parts_are_the_same_whoever_serves_the_list(clock: Clock) -> None:
    found = []
    for _ in range(2):
        driven = DrivenRunner(clock)
        driven.serve(2)
        found.append([part.request_id for part in driven.new_parts()])
    assert found[0] == found[1] == [part_id((ADA, RequestId("r")), number) for number in (0, 1)]


def test_no_other_part_has_the_id_of_one() -> None:
    keys = [(ADA, RequestId("r")), (ADA, RequestId("s")), (ClientName("bob"), RequestId("r"))]
    ids = {part_id(key, number, tries) for key in keys for number in (0, 1) for tries in (0, 1)}
    assert len(ids) == 12


def test_the_first_prompt_alone_is_known_for_who_asks_where_it_would_go() -> None:
    part = first_part(request(prompt=["x", "y"], session_id="s"), 0.0)
    assert (part.contents.prompt, part.session) == ("x", None)


def test_the_time_before_it_began_counts(driven: DrivenRunner) -> None:
    whole = request(prompt=["x", "y"], timeout_ms=5000, now=driven.clock.now - 2)
    driven.order("serve", whole)
    (first, _) = driven.new_parts()
    assert first.deadline == whole.deadline == driven.clock.now + 3


# Their pace.


def test_no_more_go_than_workers_have_places_and_in_their_order(driven: DrivenRunner) -> None:
    driven.slots = 3
    driven.serve(5)
    parts = driven.new_parts()
    assert [part.contents.prompt for part in parts] == ["prompt 0", "prompt 1", "prompt 2"]
    driven.answer(parts[1], 1)
    assert driven.new_prompts() == ["prompt 3"]
    for part in (parts[0], parts[2]):
        driven.answer(part, 1)
    assert driven.new_prompts() == ["prompt 4"]


def test_each_choice_takes_a_place(driven: DrivenRunner) -> None:
    driven.slots = 4
    driven.serve(3, n=2)
    assert driven.new_prompts() == ["prompt 0", "prompt 1"]


def test_one_goes_where_there_is_no_place_at_all(driven: DrivenRunner) -> None:
    driven.slots = driven.most = 0
    driven.serve(3)
    assert driven.new_prompts() == ["prompt 0"]


def test_so_many_seek_a_worker_at_a_time(driven: DrivenRunner) -> None:
    driven.slots = 100
    driven.serve(40)
    parts = driven.new_parts()
    assert len(parts) == MOST_SEEKING
    driven.run(*parts[:5])
    driven.say(parts[0], "prefill")
    assert len(driven.new_parts()) == 5


def test_places_are_counted_again_from_time_to_time(driven: DrivenRunner) -> None:
    driven.slots = 1
    driven.serve(3)
    (first,) = driven.new_parts()
    driven.say(first, "accepted")
    driven.slots = 3
    driven.pass_time(0.75)
    assert driven.new_parts() == []
    driven.pass_time(0.5)
    assert driven.new_prompts() == ["prompt 1", "prompt 2"]


# What the client hears.


def test_chunks_of_all_parts_are_one_stream(driven: DrivenRunner) -> None:
    driven.serve(2, n=2)
    first, second = driven.new_parts()
    for index in range(3):
        for choice in range(2):
            driven.speak(first, index, 10 * choice + index, choice=choice)
            driven.speak(second, index, 20 + 10 * choice + index, choice=choice)
    for part in (second, first):
        driven.speak(part, 3, choice=1, reason="length")
        driven.end(part, 3, usage=Usage(5, 1, 6))
    assert driven.tokens() == {
        choice: [10 * choice + index for index in range(3)] for choice in range(4)
    }
    assert driven.reasons() == {0: "stop", 1: "length", 2: "stop", 3: "length"}
    end = driven.done()
    assert (end.usage, end.outputs) == (Usage(10, 2, 12), ())
    assert {(each.request_id, each.attempt, each.worker) for each in driven.told()} == {
        ("r", 0, None)
    }
    assert driven.ended() == [end]


def test_the_usage_of_the_first_prompt_comes_with_the_first_chunk(driven: DrivenRunner) -> None:
    driven.serve(2)
    for part in driven.new_parts():
        driven.speak(part, 0, 1, usage=Usage(5, 1, 1))
        driven.speak(part, 1, 2)
    assert [chunk.usage for chunk in driven.chunks()] == [Usage(5, 1, 0), None, None, None]


def test_without_streaming_one_message_has_all_choices_whole(driven: DrivenRunner) -> None:
    driven.serve(2, n=2, stream=False)
    first, second = driven.new_parts()
    driven.answer(second, 7, 8)
    driven.speak(first, 0, 5)
    driven.pass_time(5)
    assert driven.told() == []
    driven.speak(first, 1, reason="stop")
    driven.end(first, 0, 5, choice=1, usage=Usage(5, 1, 2))
    (end,) = driven.told()
    assert isinstance(end, Done)
    assert [output.choice for output in end.outputs] == [0, 1, 2, 3]
    assert [output.token_ids for output in end.outputs] == [[5], [5], [7, 8], [7, 8]]
    assert [output.text for output in end.outputs] == ["<5>", "<5>", "<7><8>", "<7><8>"]
    assert end.usage == Usage(10, 2, 6)


def test_the_timings_are_those_of_the_first_token_and_the_time_since(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    driven.clock.now += 2
    driven.end(second, 0, 1, timings=Timings(5, 60, 900, 0))
    driven.end(first, 0, 1, timings=Timings(1, 30, 400, 10))
    assert driven.done().timings == Timings(1, 30, 400, 1600)


def test_its_client_hears_the_seed_when_a_worker_has_accepted_a_part(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    assert driven.told() == []
    for part in (first, second):
        driven.say(part, "accepted")
    assert driven.told() == [Status(RequestId("r"), 0, None, "accepted", seed=5)]


def test_a_part_that_is_queued_here_was_not_accepted(driven: DrivenRunner) -> None:
    driven.serve(2)
    part, _ = driven.new_parts()
    driven.hear(Status(part.request_id, 0, None, "queued", reason="queue_full"))
    assert driven.told() == []


def test_the_route_of_a_part_is_told_with_the_end(driven: DrivenRunner) -> None:
    driven.serve(2, debug=True)
    for number, part in enumerate(driven.new_parts()):
        driven.end(part, 0, 1, route={"worker": f"w{number}"})
    assert driven.done().route == {"worker": "w0"}


def test_a_stream_without_tokens_says_again_and_again_how_it_stands(driven: DrivenRunner) -> None:
    driven.serve(2)
    first, second = driven.new_parts()
    said: list[StatusName] = ["accepted", "loading", "prefill"]
    for status in said:
        driven.say(first, status)
        driven.pass_time(KEEP_ALIVE_S)
    assert driven.statuses() == ["accepted", "queued", "loading", "prefill"]
    driven.speak(second, 0, 1)
    for _ in range(2):
        driven.say(first, "prefill")
        driven.pass_time(KEEP_ALIVE_S)
    assert driven.statuses()[4:] == ["running", "running"]


def test_what_an_attempt_that_was_given_up_still_says_is_not_passed_on(
    driven: DrivenRunner,
) -> None:
    driven.serve(2)
    first, _ = driven.new_parts()
    driven.run(first)
    driven.known[first.key].attempt = 2
    driven.hear(Chunk(first.request_id, 1, W1, ChoiceOutput(0, 0, [99], "<99>")))
    assert driven.chunks() == []
    driven.hear(Chunk(first.request_id, 2, W1, ChoiceOutput(0, 0, [1], "<1>")))
    assert driven.tokens() == {0: [1]}


# Who comes later.


def test_who_comes_later_hears_it_from_the_start(driven: DrivenRunner) -> None:
    whole = driven.serve(2)
    first, second = driven.new_parts()
    driven.speak(first, 0, 1)
    driven.order("attach", whole, inbox=LATER)
    assert driven.tokens(LATER) == {0: [1]}
    driven.speak(first, 1, 2)
    driven.answer(second, 7)
    driven.end(first, 2)
    assert driven.tokens(LATER) == driven.tokens() == {0: [1, 2], 1: [7]}
    assert driven.done(LATER) == driven.done()


def test_who_comes_after_the_end_hears_all_of_it(driven: DrivenRunner) -> None:
    whole = driven.serve(2)
    for part in driven.new_parts():
        driven.answer(part, 1)
    driven.pass_time(20)
    driven.order("attach", whole, inbox=LATER)
    assert (driven.tokens(LATER), driven.done(LATER)) == (driven.tokens(), driven.done())
    assert driven.new_parts() == []


def test_who_comes_for_a_whole_answer_hears_that_alone(driven: DrivenRunner) -> None:
    whole = driven.serve(2, stream=False)
    first, second = driven.new_parts()
    driven.answer(first, 1)
    driven.order("attach", whole, inbox=LATER)
    assert driven.told(LATER) == []
    driven.answer(second, 2)
    assert driven.told(LATER) == driven.told(INBOX) and len(driven.told()) == 1


def test_half_a_minute_after_its_end_a_list_is_forgotten(driven: DrivenRunner) -> None:
    whole = driven.serve(2)
    for part in driven.new_parts():
        driven.answer(part, 1)
    driven.pass_time(29)
    assert not driven.runner.idle
    driven.pass_time(2)
    assert driven.runner.idle
    for verb in ("attach", "cancel"):
        driven.order(verb, whole, inbox=LATER)
    assert driven.told(LATER) == []


# Multiplexed.


def test_what_is_said_at_once_to_one_connection_is_one_message(driven: DrivenRunner) -> None:
    whole = driven.serve(3, multiplex=True)
    first, second, _ = driven.new_parts()
    for part in (first, second):
        driven.speak(part, 0, 1)
        driven.speak(part, 1, 2)
    assert [len(messages) for _, messages, _ in driven.put] == [2, 1, 1, 1], "once accepted, too"
    driven.order("attach", whole, inbox=LATER)
    assert [(inbox, len(messages)) for inbox, messages, _ in driven.put[4:]] == [(LATER, 4)]


def test_a_message_to_one_connection_is_no_larger_than_one_may_be(clock: Clock) -> None:
    driven = DrivenRunner(clock, max_bytes=2000)
    whole = driven.serve(2, multiplex=True)
    first, _ = driven.new_parts()
    for index in range(40):
        driven.speak(first, index, index)
    driven.put.clear()
    driven.order("attach", whole, inbox=LATER)
    assert [len(messages) for _, messages, _ in driven.put] == [1] * 40
    assert driven.tokens(LATER) == {0: list(range(40))}


def test_not_multiplexed_each_is_a_message_of_its_own(driven: DrivenRunner) -> None:
    whole = driven.serve(2)
    first, _ = driven.new_parts()
    for index in range(3):
        driven.speak(first, index, index)
    driven.put.clear()
    driven.order("attach", whole, inbox=LATER)
    assert [len(messages) for _, messages, _ in driven.put] == [1] * 3
