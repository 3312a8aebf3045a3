"""Whose turn it is: shares of device time, and who has to wait for whom."""

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.fair_share import FairShareScheduler


@dataclass(eq=False)
class _Group:
    """Rows that step together; a step takes `step_s`."""

    rows: int
    step_s: float = 1.0
    virtual_time: float = 0.0
    used_s: float = 0.0

    def __len__(self) -> int:
        return self.rows


def _run(turns: FairShareScheduler, groups: list[_Group], count: int) -> list[_Group]:
    order = []
    for _ in range(count):
        group = turns.next(groups)
        turns.charge(group, group.step_s)
        group.used_s += group.step_s
        order.append(group)
    return order


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(0.001, 0.1)),
        min_size=1,
        max_size=6,
    )
)
def test_shares_of_the_time_are_proportional_to_the_square_root_of_the_rows(
    kinds: list[tuple[int, float]],
) -> None:
    groups = [_Group(rows, step_s) for rows, step_s in kinds]
    _run(FairShareScheduler(), groups, 3000)
    paces = [group.used_s / math.sqrt(group.rows) for group in groups]
    largest_step = max(group.step_s / math.sqrt(group.rows) for group in groups)
    assert max(paces) - min(paces) <= largest_step * 1.001


def test_nobody_starves_beside_groups_that_are_much_larger_or_faster() -> None:
    groups = [_Group(1, 0.1), _Group(64, 0.001), _Group(64, 0.1), _Group(2, 0.05)]
    order = _run(FairShareScheduler(), groups, 20_000)
    waited = dict.fromkeys(groups, 0.0)
    longest = 0.0
    for group in order:
        for other in groups:
            waited[other] = 0.0 if other is group else waited[other] + group.step_s
        longest = max(longest, *waited.values())
    # The weakest has a share of 1 / (1 + 8 + 8 + sqrt(2)): its step of 0.1 s comes every 1.84 s.
    assert longest < 2.2


def test_a_newcomer_takes_its_share_from_now_on_and_does_not_catch_up() -> None:
    turns, old = FairShareScheduler(), _Group(4)
    _run(turns, [old], 1000)
    newcomer = _Group(4)
    first = _run(turns, [old, newcomer], 20)
    assert first.count(newcomer) <= 11
    assert first.count(old) >= 9


def test_who_was_away_does_not_catch_up_either() -> None:
    turns, steady, absent = FairShareScheduler(), _Group(1), _Group(1)
    _run(turns, [steady, absent], 10)
    _run(turns, [steady], 500)
    assert _run(turns, [steady, absent], 20).count(absent) <= 11


def test_a_group_whose_rows_all_left_meanwhile_can_still_be_charged() -> None:
    turns, group = FairShareScheduler(), _Group(0)
    turns.charge(group, 2.0)
    assert group.virtual_time == 2.0


# Who took a long time at once.

_DEBT_S = 0.5


def _others_until_next(turns: FairShareScheduler, waiting: _Group, groups: list[_Group]) -> float:
    """For how long the others have the device before it is this one's turn."""
    waited_s = 0.0
    while (group := turns.next(groups)) is not waiting:
        turns.charge(group, group.step_s)
        waited_s += group.step_s
    return waited_s


@given(st.floats(0, 1000), st.floats(0.001, 0.4))
def test_who_took_very_long_at_once_waits_no_longer_than_the_longest_debt(
    took_s: float, step_s: float
) -> None:
    turns = FairShareScheduler(longest_debt_s=_DEBT_S)
    long, short = _Group(4, took_s), _Group(4, step_s)
    _run(turns, [long], 1)
    waited_s = _others_until_next(turns, long, [long, short])
    assert waited_s <= min(took_s, _DEBT_S) * 1.001 + step_s
    assert waited_s >= min(took_s, _DEBT_S) * 0.999 - step_s


def test_a_debt_does_not_grow_when_more_is_taken_before_the_others_had_theirs() -> None:
    turns = FairShareScheduler(longest_debt_s=_DEBT_S)
    long, short = _Group(4), _Group(4, 0.01)
    turns.next([long, short])
    for _ in range(100):
        turns.charge(long, 3.0)
    assert _others_until_next(turns, long, [long, short]) == pytest.approx(_DEBT_S, abs=0.02)


def test_without_a_longest_debt_the_others_have_as_much_first() -> None:
    turns = FairShareScheduler()
    long, short = _Group(4, 30.0), _Group(4, 0.1)
    _run(turns, [long], 1)
    assert _others_until_next(turns, long, [long, short]) == pytest.approx(30.0, abs=0.2)


_STEP_TIMES = st.lists(st.floats(0.001, _DEBT_S), min_size=1, max_size=8)


@given(_STEP_TIMES, _STEP_TIMES, st.integers(1, 64))
def test_two_of_equal_weight_share_equally_whatever_their_steps_take(
    some_s: list[float], others_s: list[float], rows: int
) -> None:
    turns = FairShareScheduler(longest_debt_s=_DEBT_S)
    one, other = _Group(rows), _Group(rows)
    times_s = {id(one): itertools.cycle(some_s), id(other): itertools.cycle(others_s)}
    for _ in range(1000):
        group = turns.next([one, other])
        step_s = next(times_s[id(group)])
        turns.charge(group, step_s)
        group.used_s += step_s
        assert abs(one.used_s - other.used_s) <= max(*some_s, *others_s) * 1.001
