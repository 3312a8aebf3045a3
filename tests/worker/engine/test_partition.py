"""The cheapest groups of rows, against trying all there are."""

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.decode_groups import best_partition, step_cost, total_cost

_LENGTHS = st.lists(st.integers(1, 5000), max_size=7)
_COSTS = st.tuples(st.integers(0, 100_000), st.integers(1, 100))


def _set_partitions(rows: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to put rows into groups."""
    if not rows:
        yield []
        return
    first, rest = rows[0], rows[1:]
    for parts in _set_partitions(rest):
        yield [[first], *parts]
        for place, part in enumerate(parts):
            yield [*parts[:place], [first, *part], *parts[place + 1 :]]


def _cost(parts: list[list[int]], lengths: Sequence[int], costs: tuple[int, int]) -> float:
    return sum(costs[0] + len(part) * max(lengths[i] for i in part) * costs[1] for part in parts)


@given(_LENGTHS, _COSTS)
@settings(max_examples=150, deadline=None)
def test_no_other_way_to_group_rows_is_cheaper(lengths: list[int], costs: tuple[int, int]) -> None:
    best = _cost(best_partition(lengths, *costs), lengths, costs)
    assert best == min(
        _cost(parts, lengths, costs) for parts in _set_partitions(range(len(lengths)))
    )


@given(st.lists(st.integers(1, 5000), max_size=60), _COSTS)
@settings(max_examples=60, deadline=None)
def test_every_row_is_in_one_group_and_groups_are_runs_of_rising_length(
    lengths: list[int], costs: tuple[int, int]
) -> None:
    parts = best_partition(lengths, *costs)
    flat = [row for part in parts for row in part]
    assert sorted(flat) == list(range(len(lengths)))
    assert [lengths[row] for row in flat] == sorted(lengths)
    assert all(parts)


@given(st.lists(st.integers(1, 5000), max_size=20), _COSTS)
@settings(max_examples=60, deadline=None)
def test_the_total_cost_is_what_all_groups_cost_together(
    lengths: list[int], costs: tuple[int, int]
) -> None:
    parts = best_partition(lengths, *costs)
    groups = [[lengths[row] for row in part] for part in parts]
    assert total_cost(groups, *costs) == _cost(parts, lengths, costs)
    assert total_cost([], *costs) == 0


def test_heavy_weights_bring_all_together_and_weightless_ones_only_equals() -> None:
    lengths = [900, 10, 10, 500, 900]
    assert best_partition(lengths, 10**9, 1) == [[1, 2, 3, 0, 4]]
    apart = best_partition(lengths, 1e-6, 1)
    assert [sorted(part) for part in apart] == [[1, 2], [3], [0, 4]]


@pytest.mark.parametrize(("pass_cost", "groups"), [(700, 1), (400, 2)])
def test_one_long_row_goes_alone_once_its_padding_costs_more_than_the_weights(
    pass_cost: int, groups: int
) -> None:
    """Together 6 * 200 tokens, apart 5 * 100 + 200: padding of 500 tokens."""
    parts = best_partition([100] * 5 + [200], pass_cost, 1)
    assert len(parts) == groups


def test_a_group_without_rows_costs_nothing_and_others_the_weights_and_their_padded_rows() -> None:
    assert step_cost([], 100, 3) == 0
    assert step_cost([5], 100, 3) == 115
    assert step_cost([5, 7, 1], 100, 3) == 100 + 3 * 7 * 3
    assert math.isclose(step_cost([4], 0.5, 0.25), 1.5)
