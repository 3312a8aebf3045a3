"""How long dispatches are held for company, and how much of it is worth waiting for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.dispatch.dispatch_batching import DispatchBatchTarget, DispatchHoldTimer
from shared.messages.base import PRIORITIES, Priority
from shared.settings.controller import DispatchSettings

LIMITS = DispatchSettings(min_hold_ms=0.75, max_hold_ms=3, max_batch=16)
NEVER = float("-inf")
LONGEST_S = {"high": 0.0, "medium": 0.003, "low": 0.005}


def busy_holding(target: DispatchBatchTarget | None = None) -> DispatchHoldTimer:
    """A lane from which the first one went just now, at 0."""
    holding = DispatchHoldTimer(LIMITS, target or DispatchBatchTarget(16))
    holding.added("medium", 0.0)
    holding.sent()
    return holding


def test_a_lone_request_goes_at_once() -> None:
    holding = DispatchHoldTimer(LIMITS, DispatchBatchTarget(16))
    for now in (0.0, 0.003, 0.5):  # each after 3 ms of quiet
        holding.added("low", now)
        assert holding.due_at(NEVER) <= now
        holding.sent()


@pytest.mark.parametrize(("level", "due_at"), [("high", 0.001), ("medium", 0.00175)])
def test_soon_after_another_it_is_held_a_moment_unless_it_is_urgent(
    level: Priority, due_at: float
) -> None:
    holding = busy_holding()
    holding.added(level, 0.001)
    assert holding.due_at(NEVER) == pytest.approx(due_at)


def test_urgent_ones_take_all_with_them() -> None:
    holding = busy_holding()
    holding.added("low", 0.001)
    holding.added("high", 0.0011)
    assert holding.due_at(NEVER) <= 0.0011


@pytest.mark.parametrize("level", ["medium", "low"])
def test_while_more_come_it_waits_for_them_but_not_for_ever(level: Priority) -> None:
    holding = busy_holding()
    now = first_at = 0.0005
    while holding.due_at(NEVER) > now or now == first_at:
        holding.added(level, now)
        now += 0.0005
    assert holding.due_at(NEVER) == pytest.approx(first_at + LONGEST_S[level])


def test_a_low_one_does_not_hold_up_a_medium_one() -> None:
    holding = busy_holding()
    for number in range(7):
        holding.added("medium" if number == 1 else "low", 0.0005 * (number + 1))
    assert holding.due_at(NEVER) == pytest.approx(0.001 + LONGEST_S["medium"])


def test_as_many_as_is_worth_waiting_for_go_at_once() -> None:
    holding = busy_holding(DispatchBatchTarget(3))
    for _ in range(2):
        holding.added("medium", 0.0001)
        assert holding.due_at(NEVER) > 0.0001
    holding.added("medium", 0.0001)
    assert holding.due_at(NEVER) <= 0.0001


def test_none_goes_to_a_worker_without_room_before_the_pause_is_over() -> None:
    holding = DispatchHoldTimer(LIMITS, DispatchBatchTarget(16))
    holding.added("medium", 0.0)
    assert holding.due_at(0.02) == 0.02


@given(
    st.lists(st.tuples(st.sampled_from(PRIORITIES), st.floats(0, 0.004)), min_size=1, max_size=60)
)
def test_nobody_is_held_longer_than_its_priority_allows(
    arrivals: list[tuple[Priority, float]],
) -> None:
    holding, now = DispatchHoldTimer(LIMITS, DispatchBatchTarget(16)), 0.0
    limits: list[float] = []
    for level, pause_s in arrivals:
        arrives_at = now + pause_s
        if limits and (due_at := holding.due_at(NEVER)) <= arrives_at:
            assert due_at <= min(limits) + 1e-9
            holding.sent()
            limits = []
        now = arrives_at
        holding.added(level, now)
        limits.append(now + LONGEST_S[level])
    assert holding.due_at(NEVER) <= min(limits) + 1e-9


def test_less_company_is_worth_waiting_for_where_the_worker_answers_sooner() -> None:
    target = DispatchBatchTarget(16)
    for _ in range(1000):
        target.answered(held_s=0.003, round_trip_s=0.001)
    assert target.size == 2
    for _ in range(1000):
        target.answered(held_s=0.001, round_trip_s=0.01)
    assert target.size == 16


def test_the_target_stays_where_waiting_and_answering_take_about_as_long() -> None:
    target = DispatchBatchTarget(16)
    for _ in range(50):
        target.answered(held_s=0.003, round_trip_s=0.001)
    for _ in range(100):  # until what was before is forgotten
        target.answered(held_s=0.003, round_trip_s=0.004)
    settled = target.size
    assert settled < 16
    for _ in range(200):
        target.answered(held_s=0.003, round_trip_s=0.004)
    assert target.size == settled


@given(st.integers(0, 20), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=300))
def test_the_target_keeps_its_bounds(most: int, batches: list[tuple[float, float]]) -> None:
    target = DispatchBatchTarget(most)
    for waited_s, took_s in batches:
        target.answered(waited_s, took_s)
        assert min(2, max(1, most)) <= target.size <= max(1, most)
