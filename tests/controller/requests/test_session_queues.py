"""The order of the turns of sessions, beside lists."""

from collections import defaultdict
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.requests.request import TrackedRequest
from controller.requests.session_queues import SessionQueues
from shared.ids import SessionKey
from tests.controller.values import request


def _turn(name: str, session: str | None = "s") -> TrackedRequest:
    return request(name, session_id=session)


def test_the_first_that_came_is_next_and_then_the_one_after_it() -> None:
    turns, (one, two, three) = SessionQueues(), [_turn(name) for name in "abc"]
    for each in (one, two, three):
        turns.add(each)
    assert [turns.is_next(each) for each in (one, two, three)] == [True, False, False]
    assert turns.remove(two) is None, "nobody's turn has come by that"
    assert turns.remove(one) is three and turns.is_next(three)
    assert turns.remove(three) is None


def test_what_is_no_turn_waits_for_none() -> None:
    turns, alone = SessionQueues(), _turn("a", None)
    turns.add(alone)
    assert turns.is_next(alone) and turns.remove(alone) is None


def test_what_runs_already_is_before_all_that_wait() -> None:
    turns, waiting, running = SessionQueues(), _turn("a"), _turn("b")
    turns.add(waiting)
    turns.add_running(running)
    assert turns.is_next(running) and not turns.is_next(waiting)
    assert turns.remove(running) is waiting


def test_a_lost_turn_that_is_asked_again_keeps_its_place() -> None:
    turns, (lost, waiting, again) = SessionQueues(), [_turn(name) for name in "aba"]
    turns.add(lost)
    turns.add(waiting)
    turns.add(again, replaced=lost)
    assert turns.is_next(again)
    assert turns.remove(lost) is None
    assert turns.remove(again) is waiting


def test_what_its_client_had_tokens_of_is_before_all_that_have_not_begun() -> None:
    turns, (runs, waiting) = SessionQueues(), [_turn(name) for name in "ab"]
    runs.state = "running"
    begun = request("c", session_id="s", resume={"token_ids": [1]})
    for each in (runs, waiting, begun):
        turns.add(each)
    assert turns.remove(runs) is begun
    assert turns.remove(begun) is waiting


def test_one_leaves_once() -> None:
    turns, (one, two) = SessionQueues(), [_turn(name) for name in "ab"]
    turns.add(one)
    turns.add(two)
    assert turns.remove(one) is two
    assert turns.remove(one) is None
    assert turns.remove(_turn("stranger")) is None and turns.is_next(two)


def test_after_the_last_turn_nothing_is_left_of_a_session() -> None:
    turns, one = SessionQueues(), _turn("a")
    turns.add(one)
    turns.remove(one)
    assert turns._turns == {}


class TurnsBesideLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.turns = SessionQueues()
        self.expected: defaultdict[SessionKey, list[TrackedRequest]] = defaultdict(list)
        self.all: list[TrackedRequest] = []

    @rule(session=st.sampled_from("st"), first=st.booleans())
    def come(self, session: str, first: bool) -> None:
        one = _turn(str(len(self.all)), session)
        assert one.session is not None
        self.all.append(one)
        expected = self.expected[one.session]
        if first:
            self.turns.add_running(one)
            expected.insert(0, one)
        else:
            self.turns.add(one)
            expected.append(one)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.all))
        expected = self.expected[one.session]
        was_first = one in expected and expected[0] is one
        if one in expected:
            expected.remove(one)
        assert self.turns.remove(one) is (expected[0] if was_first and expected else None)

    @invariant()
    def one_of_each_session_is_next(self) -> None:
        for expected in self.expected.values():
            assert [self.turns.is_next(each) for each in expected] == [
                number == 0 for number in range(len(expected))
            ]


test_turns_never_differ_from_lists = TurnsBesideLists.TestCase
