"""Who listens to lists of prompts, by value: who comes later, and who is gone."""

from collections.abc import Sequence

import pytest

from controller.requests.request import TrackedRequest
from shared.ids import RequestId
from shared.messages.stream import DoneMessage, FailedMessage, StatusMessage, Usage
from tests.controller.driven_runner import INBOX, LATER, DrivenRunner

# Who comes later.


def test_who_comes_later_hears_it_from_the_start(runner: DrivenRunner) -> None:
    whole = runner.serve(2)
    first, second = runner.new_parts()
    runner.speak(first, 0, 1)
    runner.order("attach", whole, inbox=LATER)
    assert runner.tokens(LATER) == {0: [1]}
    runner.speak(first, 1, 2)
    runner.answer(second, 7)
    runner.end(first, 2)
    assert runner.tokens(LATER) == runner.tokens() == {0: [1, 2], 1: [7]}
    assert runner.done(LATER) == runner.done()


def test_who_comes_later_hears_the_seed_first(runner: DrivenRunner) -> None:
    whole = runner.serve(2)
    first, _ = runner.new_parts()
    runner.order("attach", whole, inbox=LATER)
    assert runner.told(LATER) == [], "no worker has accepted a part"
    runner.speak(first, 0, 1)
    runner.order("attach", whole, inbox="_INBOX.last")
    accepted = StatusMessage(RequestId("r"), 0, None, "accepted", seed=5)
    for inbox in (INBOX, LATER, "_INBOX.last"):
        assert runner.told(inbox)[0] == accepted
    assert runner.tokens("_INBOX.last") == {0: [1]}


def test_who_comes_after_the_end_hears_all_of_it(runner: DrivenRunner) -> None:
    whole = runner.serve(2)
    for part in runner.new_parts():
        runner.answer(part, 1)
    runner.pass_time(20)
    runner.order("attach", whole, inbox=LATER)
    assert (runner.tokens(LATER), runner.done(LATER)) == (runner.tokens(), runner.done())
    assert runner.new_parts() == []


def test_who_comes_for_a_whole_answer_hears_that_alone(runner: DrivenRunner) -> None:
    whole = runner.serve(2, stream=False)
    first, second = runner.new_parts()
    runner.answer(first, 1)
    runner.order("attach", whole, inbox=LATER)
    assert runner.told(LATER) == []
    runner.answer(second, 2)
    assert runner.told(LATER) == runner.told(INBOX) and len(runner.told()) == 1


def test_half_a_minute_after_its_end_a_list_is_forgotten(runner: DrivenRunner) -> None:
    whole = runner.serve(2)
    for part in runner.new_parts():
        runner.answer(part, 1)
    runner.pass_time(29)
    assert not runner.idle
    runner.pass_time(2)
    assert runner.idle
    for verb in ("attach", "cancel"):
        runner.order(verb, whole, inbox=LATER)
    assert runner.told(LATER) == []


def _begun(runner: DrivenRunner, *, tokens: int) -> Sequence[TrackedRequest]:
    """A list of two prompts, and its parts; the first one has so many tokens, which are sent."""
    whole = runner.serve(2)
    first, second = runner.new_parts()
    for index in range(tokens):
        runner.speak(first, index, index)
    runner.pass_time(0.25)
    return whole, first, second


def test_who_asks_for_it_again_and_again_gets_so_much_at_a_time(
    runner: DrivenRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader does all else meanwhile, and serves others."""
    monkeypatch.setattr("controller.prompt_lists.list_runner._BYTES_PER_TICK", 20_000)
    whole, _, _ = _begun(runner, tokens=40)
    runner.put.clear()
    for number in range(50):
        runner.order("attach", whole, inbox=f"_INBOX.e{number}")
    at_once = len(runner.put)
    assert 41 < at_once < 50 * 41 / 4
    runner.pass_time(0.25)
    assert len(runner.put) < 3 * at_once
    for _ in range(50):
        runner.pass_time(0.25)
    for number in range(50):
        assert runner.tokens(f"_INBOX.e{number}") == {0: list(range(40))}


def test_what_comes_while_a_list_is_sent_again_comes_after_it(
    runner: DrivenRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.prompt_lists.list_runner._BYTES_PER_TICK", 5_000)
    whole, first, second = _begun(runner, tokens=100)
    late = [f"_INBOX.e{number}" for number in range(2)]
    for inbox in late:
        runner.order("attach", whole, inbox=inbox)
    runner.end(first, 100, 100, usage=Usage(5, 1, 101))
    runner.answer(second, 1)
    for inbox in late:
        assert not any(isinstance(each, DoneMessage) for each in runner.told(inbox))
    for _ in range(20):
        runner.pass_time(0.25)
    for inbox in late:
        assert runner.tokens(inbox) == {0: list(range(101)), 1: [1]}
        ends = [isinstance(each, DoneMessage) for each in runner.told(inbox)]
        assert ends[-1] and sum(ends) == 1


# Multiplexed.


def test_what_is_said_at_once_to_one_connection_is_one_message(runner: DrivenRunner) -> None:
    whole = runner.serve(3, multiplex=True)
    first, second, _ = runner.new_parts()
    for part in (first, second):
        runner.speak(part, 0, 1)
        runner.speak(part, 1, 2)
    assert [len(messages) for _, messages, _ in runner.put] == [2, 1, 1, 1], "once accepted, too"
    runner.order("attach", whole, inbox=LATER)
    assert [(inbox, len(messages)) for inbox, messages, _ in runner.put[4:]] == [(LATER, 5)]


def test_a_message_to_one_connection_is_no_larger_than_one_may_be(runner: DrivenRunner) -> None:
    runner.limit_messages(500)
    whole = runner.serve(2, multiplex=True)
    first, _ = runner.new_parts()
    for index in range(40):
        runner.speak(first, index, index)
    runner.put.clear()
    runner.order("attach", whole, inbox=LATER)
    assert [len(messages) for _, messages, _ in runner.put] == [1] * 41, "accepted, too"
    assert runner.tokens(LATER) == {0: list(range(40))}


def test_not_multiplexed_each_is_a_message_of_its_own(runner: DrivenRunner) -> None:
    whole = runner.serve(2)
    first, _ = runner.new_parts()
    for index in range(3):
        runner.speak(first, index, index)
    runner.put.clear()
    runner.order("attach", whole, inbox=LATER)
    assert [len(messages) for _, messages, _ in runner.put] == [1] * 4, "accepted, too"


# Who listens.


def test_a_list_that_nobody_listens_to_any_more_ends(runner: DrivenRunner) -> None:
    runner.slots = 1
    runner.serve(3)
    (part,) = runner.new_parts()
    runner.say(part, "accepted")
    runner.clock.now += 0.5
    runner.speak(part, 0, 1)
    assert runner.miss() and runner.ended() == [], "its client may be on its way back"
    runner.pass_time(0.5)
    assert runner.miss() and runner.ended() == []
    runner.pass_time(0.5)
    assert runner.miss()
    assert runner.finished() == [(part.request_id, "client_gone")]
    (end,) = runner.ended()
    assert isinstance(end, FailedMessage) and end.error.code == "client_gone"
    runner.pass_time(5)
    assert runner.new_parts() == []


def test_one_who_is_back_is_no_longer_missed(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, _ = runner.new_parts()
    runner.clock.now += 0.5
    runner.speak(first, 0, 1)
    assert runner.miss()
    runner.pass_time(1.0)  # probes that find somebody
    runner.clock.now += 0.5
    runner.speak(first, 1, 2)
    assert runner.miss() and runner.ended() == []


def test_while_somebody_else_listens_it_goes_on(runner: DrivenRunner) -> None:
    whole = runner.serve(2)
    first, second = runner.new_parts()
    runner.order("attach", whole, inbox=LATER)
    for index in range(4):
        runner.clock.now += 0.5
        runner.speak(first, index, index)
        runner.miss(INBOX)
    runner.answer(second, 1)
    runner.end(first, 4)
    assert runner.done(LATER) and len(runner.chunks(INBOX)) < len(runner.chunks(LATER))


def test_who_waits_for_a_whole_answer_is_never_looked_after(runner: DrivenRunner) -> None:
    runner.serve(2, stream=False)
    first, second = runner.new_parts()
    for index in range(20):
        runner.clock.now += 0.5
        runner.speak(first, index, 1)
    runner.answer(second, 1)
    runner.end(first, 20)
    assert [reply for _, _, reply in runner.put] == [""]


def test_after_a_new_connection_others_may_be_on_their_way_back_too(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, _ = runner.new_parts()
    runner.connections += 1
    for index in range(5):
        runner.clock.now += 0.5
        runner.speak(first, index, 1)
        assert runner.miss()
    assert runner.ended() == []
    for index in range(5, 10):
        runner.clock.now += 0.5
        runner.speak(first, index, 1)
        runner.miss()
    assert [type(end) for end in runner.ended()] == [FailedMessage]
