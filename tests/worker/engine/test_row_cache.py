"""The cache of one layer against rows that are kept one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest

from tests.rounding import allowed, difference
from tests.worker.engine.reference_sampler import Array
from worker.engine.row_cache import GroupedMaskKVCache, MultiRowKVCache, RowLengths

_HEADS, _KEY_DIM, _VALUE_DIM = 2, 4, 3
_GARBAGE = 1e4
"""Larger than any key or value: whoever attends to it gives something else."""

Chance = np.random.Generator


@dataclass
class _Row:
    """Keys and values of one row, [heads, tokens, dim] each."""

    keys: Array
    values: Array


@dataclass
class _Kept:
    """A cache, and its rows as they should be."""

    cache: MultiRowKVCache
    rows: RowLengths
    expected: list[_Row] = field(default_factory=list)

    def assert_holds(self) -> None:
        assert self.rows.lengths == [row.keys.shape[1] for row in self.expected]
        for place, row in enumerate(self.expected):
            length = row.keys.shape[1]
            np.testing.assert_array_equal(self.cache.keys[place, :, :length], row.keys)
            np.testing.assert_array_equal(self.cache.values[place, :, :length], row.values)


def _random(chance: Chance, *shape: int) -> Array:
    numbers: Array = chance.normal(size=shape).astype(np.float32)
    return numbers


def _garbage(chance: Chance, *shape: int) -> Array:
    return _random(chance, *shape) + np.float32(_GARBAGE)


def _kept(chance: Chance, lengths: Sequence[int], *, slots: int = 0, width: int = 0) -> _Kept:
    """Rows of such lengths, and garbage wherever none is."""
    slots, width = max(slots, len(lengths)), max(width, *lengths, 1)
    keys = _garbage(chance, slots, _HEADS, width, _KEY_DIM)
    values = _garbage(chance, slots, _HEADS, width, _VALUE_DIM)
    expected = []
    for place, length in enumerate(lengths):
        row = _Row(
            _random(chance, _HEADS, length, _KEY_DIM), _random(chance, _HEADS, length, _VALUE_DIM)
        )
        keys[place, :, :length], values[place, :, :length] = row.keys, row.values
        expected.append(row)
    rows = RowLengths(lengths)
    return _Kept(MultiRowKVCache(rows, mx.array(keys), mx.array(values)), rows, expected)


def _step(chance: Chance, kept: _Kept) -> tuple[mx.array, mx.array]:
    """Every row gets a token; what the cache gives to attention."""
    count = len(kept.expected)
    keys = _random(chance, count, _HEADS, 1, _KEY_DIM)
    values = _random(chance, count, _HEADS, 1, _VALUE_DIM)
    fetched = kept.cache.update_and_fetch(mx.array(keys), mx.array(values))
    kept.rows.advance()
    for place, row in enumerate(kept.expected):
        row.keys = np.concatenate([row.keys, keys[place]], axis=1)
        row.values = np.concatenate([row.values, values[place]], axis=1)
    return fetched


def _attention(query: Array, row: _Row, window_size: int | None) -> Array:
    """[heads, dim] of one row alone: its last `window_size` tokens, or all."""
    begin = 0 if window_size is None else max(0, row.keys.shape[1] - window_size)
    scores = np.einsum("hd,htd->ht", query, row.keys[:, begin:])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended: Array = np.einsum("ht,htd->hd", weights, row.values[:, begin:])
    return attended


@pytest.mark.parametrize("seed", range(12))
def test_whatever_joins_moves_and_grows_each_row_keeps_its_keys_and_values(seed: int) -> None:
    chance = np.random.default_rng([1, seed])
    kept = _kept(chance, chance.integers(0, 6, 3).tolist(), slots=4, width=8)
    for _ in range(40):
        count = len(kept.expected)
        action = chance.choice(["step", "resize", "join", "move", "leave", "take"])
        if action == "step" and count:
            if kept.rows.longest == kept.cache.width:
                kept.cache.resize(kept.cache.slots, kept.cache.width + 3)
            _step(chance, kept)
        elif action == "resize":
            slots, width = chance.integers(0, 4, 2).tolist()
            width += max(1, kept.rows.longest)
            kept.cache.resize(max(1, count) + slots, width)
            assert (kept.cache.slots, kept.cache.width) == (max(1, count) + slots, width)
        elif action == "join":
            others = _kept(chance, chance.integers(0, 9, 2).tolist(), slots=3, width=9)
            length = others.rows.longest
            kept.cache.resize(count + 2 + int(chance.integers(2)), max(kept.cache.width, length))
            kept.cache.write(others.cache, count, length)
            kept.rows.set([*kept.rows.lengths, *others.rows.lengths])
            kept.expected += others.expected
        elif action in ("move", "leave") and count > 1:
            hole = int(chance.integers(count - 1))
            kept.cache.put([hole], kept.cache.copies([count - 1]))
            kept.expected[hole] = kept.expected.pop()
            lengths = kept.rows.lengths
            lengths[hole] = lengths[-1]
            kept.rows.set(lengths[:-1])
        elif action == "take" and count:
            places = chance.permutation(count)[: chance.integers(1, count + 1)].tolist()
            rows = RowLengths([kept.rows.lengths[place] for place in places])
            taken = kept.cache.take(places, rows, max(1, rows.longest))
            kept = _Kept(taken, rows, [kept.expected[place] for place in places])
        kept.assert_holds()


@pytest.mark.parametrize("window_size", [None, 1, 2, 5, 100])
@pytest.mark.parametrize("lengths", [[0], [3, 3], [7, 0, 2, 12], [1, 40, 5]], ids=str)
def test_a_row_attends_to_its_own_tokens_within_the_window_and_to_no_garbage(
    lengths: list[int], window_size: int | None
) -> None:
    chance = np.random.default_rng(len(lengths))
    kept = _kept(chance, lengths, slots=len(lengths) + 2, width=max(lengths) + 9)
    for _ in range(4):
        limited = window_size is not None and kept.rows.longest >= window_size
        needs_mask = limited or not kept.rows.even
        mask = kept.cache.make_mask(1, window_size=window_size)
        queries = _random(chance, len(lengths), _HEADS, 1, _KEY_DIM)
        keys, values = _step(chance, kept)
        shape = (len(lengths), 1, 1, keys.shape[2]) if needs_mask else None
        assert (mask.shape if mask is not None else None) == shape
        padded = mx.pad(values, [(0, 0), (0, 0), (0, 0), (0, _KEY_DIM - _VALUE_DIM)])
        attended = mx.fast.scaled_dot_product_attention(
            mx.array(queries), keys, padded, scale=1.0, mask=mask
        )
        for place, row in enumerate(kept.expected):
            found = attended[place, :, 0, :_VALUE_DIM]
            right = _attention(queries[place, :, 0], row, window_size)
            assert difference(found, right) <= allowed(0.0, float(np.abs(row.values).max()))


def test_positions_are_those_of_the_next_tokens_and_all_rows_advance_together() -> None:
    rows = RowLengths([4, 0, 7])
    assert (len(rows), rows.longest) == (3, 7)
    assert rows.offsets.tolist() == [4, 0, 7]
    rows.advance()
    assert (rows.lengths, rows.offsets.tolist(), rows.longest) == ([5, 1, 8], [5, 1, 8], 8)
    assert not rows.even
    rows.set([2])
    assert (rows.lengths, rows.offsets.tolist(), rows.even) == ([2], [2], True)
    assert RowLengths([]).longest == 0


def test_each_row_and_head_has_a_place_of_its_own_for_the_next_token() -> None:
    rows = RowLengths([4, 0])
    assert rows.flat_indices(3, 10).tolist() == [4, 14, 24, 30, 40, 50]
    assert rows.flat_indices(1, 5).tolist() == [4, 5]
    rows.advance()
    assert rows.flat_indices(3, 10).tolist() == [5, 15, 25, 31, 41, 51]


def test_a_step_gives_no_more_than_the_rows_and_columns_in_use() -> None:
    chance = np.random.default_rng(0)
    kept = _kept(chance, [3, 5], slots=6, width=30)
    keys, values = _step(chance, kept)
    assert keys.shape == (2, _HEADS, 6, _KEY_DIM)
    assert values.shape == (2, _HEADS, 6, _VALUE_DIM)
    assert kept.cache.nbytes == 6 * _HEADS * 30 * (_KEY_DIM + _VALUE_DIM) * 4


def test_several_rows_move_at_once_also_where_one_takes_the_place_of_another() -> None:
    chance = np.random.default_rng(3)
    kept = _kept(chance, [2, 6, 4, 1], width=8)
    copies = kept.cache.copies([1, 2, 0])
    mx.eval(copies)
    kept.cache.put([0, 1, 2], copies)
    kept.rows.set([6, 4, 2, 1])
    kept.expected = [kept.expected[place] for place in (1, 2, 0, 3)]
    kept.assert_holds()


@pytest.mark.parametrize(("heads", "value_dim"), [(2, 0), (0, 0)])
def test_rows_join_move_and_grow_where_values_or_heads_are_none(heads: int, value_dim: int) -> None:
    chance = np.random.default_rng(4)

    def cache(rows: RowLengths) -> MultiRowKVCache:
        keys = _random(chance, len(rows), heads, 8, _KEY_DIM)
        return MultiRowKVCache(rows, mx.array(keys), mx.zeros((len(rows), heads, 8, value_dim)))

    rows = RowLengths([5, 3, 2])
    kept = cache(rows)
    kept.resize(5, 16)
    kept.write(cache(RowLengths([7, 1])), 3, 7)
    rows.set([5, 3, 2, 7, 1])
    expected = np.array(kept.keys)
    if heads:  # nothing is ever put into a layer without attention
        token = _random(chance, 5, heads, 1, _KEY_DIM)
        kept.update_and_fetch(mx.array(token), mx.zeros((5, heads, 1, value_dim)))
        for place, length in enumerate(rows.lengths):
            expected[place, :, length] = token[place, :, 0]
    rows.advance()
    kept.put([0, 1], kept.copies([4, 3]))
    expected[[0, 1], :, :8] = expected[[4, 3], :, :8]
    taken = kept.take([1, 0], RowLengths([8, 2]), 9)
    mx.eval(kept.state, taken.state)
    np.testing.assert_array_equal(kept.keys, expected)
    np.testing.assert_array_equal(taken.keys, expected[[1, 0], :, :9])
    assert taken.values.shape == (2, heads, 9, value_dim)


@pytest.mark.parametrize("lengths", [[3, 3], [7, 0]], ids=str)
def test_a_mask_for_scores_of_groups_says_the_same_with_an_axis_more(lengths: list[int]) -> None:
    kept = _kept(np.random.default_rng(0), lengths)
    rows = RowLengths(lengths)
    grouped = GroupedMaskKVCache(rows, kept.cache.keys, kept.cache.values)
    plain, mask = kept.cache.make_mask(1), grouped.make_mask(1)
    if plain is None or mask is None:
        assert plain is mask and rows.even
    else:
        scores = mx.zeros((len(lengths), _HEADS, 3, 1, plain.shape[-1]))
        masked = mx.where(mask, scores, 1)
        for place, length in enumerate(lengths):
            assert masked[place].max(axis=(0, 1, 2)).tolist() == [
                float(column > length) for column in range(plain.shape[-1])
            ]
