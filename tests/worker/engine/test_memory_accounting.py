"""Who gives way when the KV caches of all models together become too large."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.caches import CacheLayout
from worker.engine.memory_accounting import KVAccounting, PreemptionCandidate
from worker.engine.row_cache import BLOCK_TOKENS


@dataclass
class _Holder:
    """Holds so many bytes for each of its sequences, and some that nobody needs."""

    sizes: dict[PreemptionCandidate, int] = field(default_factory=dict)
    slack: int = 0
    growth_bytes: int = 0
    gone: list[int] = field(default_factory=list)
    asked_for_slack: int = 0

    @property
    def held_bytes(self) -> int:
        return sum(self.sizes.values()) + self.slack

    @property
    def preemption_candidates(self) -> Sequence[PreemptionCandidate]:
        return list(self.sizes)

    def release_slack(self) -> None:
        self.asked_for_slack += 1
        self.slack = 0

    def preempt(self, sequence: int) -> None:
        (claim,) = [claim for claim in self.sizes if claim.sequence == sequence]
        del self.sizes[claim]
        self.gone.append(sequence)


@dataclass(frozen=True)
class _Layout:
    token_bytes: int
    row_bytes: int
    layer_token_bytes: int


def _accounting(budget: int, *holders: _Holder) -> KVAccounting:
    accounting = KVAccounting(budget)
    for holder in holders:
        accounting.open(holder)
    return accounting


def _holder(*sequences: int, size: int = 10, **fields: Any) -> _Holder:
    """Sequences of one priority; the higher the number, the younger."""
    return _Holder({PreemptionCandidate(0, float(i), i): size for i in sequences}, **fields)


# Who is let in.


def test_what_fits_beside_what_is_held_and_the_next_block_of_all_is_admitted() -> None:
    accounting = _accounting(100, _holder(1, 2, growth_bytes=15), _holder(3, growth_bytes=5))
    assert accounting.held_bytes == 30
    assert accounting.admits(50)
    assert not accounting.admits(51)
    assert accounting.fits(70)
    assert not accounting.fits(71)


def test_who_comes_when_nothing_is_held_is_always_admitted() -> None:
    holder = _holder()
    assert _accounting(100, holder).admits(10**9)
    holder.sizes[PreemptionCandidate(0, 0.0, 1)] = 1
    assert not _accounting(100, holder).admits(100)


def test_a_holder_that_is_closed_counts_no_more() -> None:
    first, second = _holder(1), _holder(2, 3)
    accounting = _accounting(100, first, second)
    accounting.close(second)
    assert accounting.held_bytes == 10
    assert accounting.admits(90)


def test_who_comes_gets_the_slack_of_others() -> None:
    holder = _holder(1, slack=50)
    accounting = _accounting(70, holder)
    assert accounting.admits(10)
    assert holder.asked_for_slack == 0
    assert accounting.admits(60)
    assert holder.slack == 0
    assert not accounting.admits(61)


# Who gives way.


def test_where_there_is_room_nobody_gives_way_nor_gives_back_slack() -> None:
    holder = _holder(1, 2, slack=20)
    accounting = _accounting(60, holder)
    accounting.ensure_free(lambda: 20)
    assert (holder.gone, holder.slack, holder.asked_for_slack) == ([], 20, 0)
    assert accounting.preemptions == 0


def test_slack_of_all_is_given_back_before_anybody_gives_way() -> None:
    holders = [_holder(1, 2, slack=20), _holder(3, slack=20)]
    accounting = _accounting(70, *holders)
    accounting.ensure_free(lambda: 40)
    assert [holder.slack for holder in holders] == [0, 0]
    assert [holder.gone for holder in holders] == [[], []]


def test_no_more_give_way_than_have_to() -> None:
    holder = _holder(1, 2, 3, 4, 5)
    _accounting(50, holder).ensure_free(lambda: 15)
    assert holder.gone == [5, 4]


def test_the_last_sequence_of_all_models_never_gives_way() -> None:
    holders = [_holder(1), _holder(), _holder(2)]
    accounting = _accounting(20, *holders)
    accounting.ensure_free(lambda: 10**9)
    assert [holder.gone for holder in holders] == [[], [], [2]]
    accounting.ensure_free(lambda: 10**9)
    assert accounting.preemptions == 1


def test_room_that_nobody_needs_any_more_is_not_made() -> None:
    """Who asked gives way itself: then it needs nothing."""
    holder = _holder(1, 2, 3)
    needed = {3: 100}
    accounting = _accounting(30, holder)
    accounting.ensure_free(lambda: sum(needed[i] for i in needed if i not in holder.gone))
    assert holder.gone == [3]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 30), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 200),
)
def test_afterwards_it_fits_or_one_is_left_and_who_gave_way_is_worse_than_who_stays(
    entries: list[tuple[int, int, int, bool]], needed: int
) -> None:
    holders = [_Holder(), _Holder()]
    for sequence, (priority, arrived_at, size, second) in enumerate(entries):
        holders[second].sizes[PreemptionCandidate(priority, float(arrived_at), sequence)] = size
    before = {claim for holder in holders for claim in holder.preemption_candidates}
    accounting = _accounting(100, *holders)
    accounting.ensure_free(lambda: needed)
    staying = {claim for holder in holders for claim in holder.preemption_candidates}
    assert staying
    assert accounting.fits(needed) or len(staying) == 1
    gone = before - staying
    assert accounting.preemptions == len(gone)
    assert all(worse > better for worse in gone for better in staying)


# The longest text.


@pytest.mark.parametrize("layers", [1, 2, 30])
@pytest.mark.parametrize("row_bytes", [0, 5000])
def test_a_text_of_max_tokens_fits_while_it_grows_and_one_block_more_does_not(
    layers: int, row_bytes: int
) -> None:
    token_bytes = 60
    layout = cast(CacheLayout, _Layout(token_bytes, row_bytes, token_bytes // layers))
    for budget in range(100_000, 400_000, 7919):
        most = KVAccounting(budget).max_tokens(layout)
        assert most % BLOCK_TOKENS == 0
        one_layer = token_bytes / layers
        whole, before = most, most - BLOCK_TOKENS
        assert row_bytes + whole * token_bytes + before * one_layer <= budget
        more = most + BLOCK_TOKENS
        assert row_bytes + more * (token_bytes + one_layer) > budget


def test_where_no_layer_grows_any_text_fits() -> None:
    layout = cast(CacheLayout, _Layout(0, 5000, 0))
    assert KVAccounting(10).max_tokens(layout) >= 10**9
