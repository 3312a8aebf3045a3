"""The turns of a session, one after another; other sessions do not wait for them."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.ids import ClientName, SessionKey
from tests.worker.test_admission import Admitting
from worker.session_order import SessionOrder

CLIENT = ClientName("local")


@dataclass(eq=False)
class Turn:
    ordered_session: SessionKey | None


class AnyOrder(RuleBasedStateMachine):
    """Requests come, begin when they may, and end whenever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.order: SessionOrder[Turn] = SessionOrder()
        self.here: list[Turn] = []
        self.began: list[Turn] = []

    @rule(session=st.sampled_from(["a", "b", "c", None]))
    def comes(self, session: str | None) -> None:
        turn = Turn((CLIENT, session) if session else None)
        self.order.came(turn)
        self.here.append(turn)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def begins_if_it_may(self, data: Any) -> None:
        turn = data.draw(st.sampled_from(self.here))
        if self.order.is_next(turn) and turn not in self.began:
            self.began.append(turn)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), twice=st.booleans())
    def ends(self, data: Any, twice: bool) -> None:
        turn = data.draw(st.sampled_from(self.here))
        self.here.remove(turn)
        if turn in self.began:
            self.began.remove(turn)
        for _ in range(1 + twice):
            self.order.ended(turn)

    @invariant()
    def of_each_session_the_first_may_begin_and_nobody_else(self) -> None:
        first: dict[SessionKey, Turn] = {}
        for turn in self.here:
            if turn.ordered_session is None:
                assert self.order.is_next(turn)
            else:
                first.setdefault(turn.ordered_session, turn)
                is_first = first[turn.ordered_session] is turn
                assert self.order.is_next(turn) == is_first
        sessions = [turn.ordered_session for turn in self.began if turn.ordered_session]
        assert len(sessions) == len(set(sessions))
        assert len(self.order) == len(first)


TestAnyOrder = AnyOrder.TestCase


def test_a_next_turn_waits_and_others_go_past_it() -> None:
    admitting = Admitting()
    first = admitting.push(session_id="s")
    second = admitting.push(session_id="s")
    other = admitting.push(session_id="t")
    lonely = admitting.push()
    assert admitting.admit() == [first, other, lonely]
    assert admitting.admit() == []
    admitting.end(other)
    assert admitting.admit() == []
    admitting.end(first)
    assert admitting.admit() == [second]


def test_an_urgent_turn_does_not_overtake_its_own_session() -> None:
    admitting = Admitting()
    first = admitting.push("low", session_id="s")
    urgent = admitting.push("high", session_id="s")
    assert admitting.admit() == [first]
    admitting.end(first)
    assert admitting.admit() == [urgent]


def test_a_turn_that_ends_while_it_waits_lets_the_next_one_go() -> None:
    admitting = Admitting()
    first, second, third = (admitting.push(session_id="s") for _ in range(3))
    assert admitting.admit() == [first]
    admitting.admission.leave_queue(second)
    admitting.end(first)
    assert admitting.admit() == [third]


def test_sessions_that_nobody_named_and_counts_are_in_no_order() -> None:
    admitting = Admitting()
    derived = [admitting.push(session_id="auto-0123") for _ in range(2)]
    assert admitting.admit() == derived
    named = admitting.push(session_id="s")
    count = admitting.push(session_id="s", count_only=True)
    assert admitting.admit() == [count, named], "counts go past the queue"


def test_who_waits_for_its_session_is_not_overdue() -> None:
    admitting = Admitting(max_wait_ms=1)
    first = admitting.push(session_id="s")
    admitting.push(session_id="s")
    assert admitting.admit() == [first]
    assert admitting.admission.overdue(first.received_at + 1000) == []
