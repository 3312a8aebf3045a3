"""The cache of a layer of chunked attention holds what mlx-lm's attends to, and no more."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import ChunkedKVCache

from tests.worker.engine.reference_sampler import Array
from worker.engine.chunked_attention_cache import ChunkedAttentionCache
from worker.engine.row_cache import BLOCK_TOKENS

_HEADS, _KEY_DIM, _VALUE_DIM = 2, 3, 5
_CHUNK = 12


def _tokens(begin: int, count: int, dim: int) -> mx.array:
    """[1, heads, count, dim], other numbers for each token of the text."""
    first, size = begin * _HEADS * dim, count * _HEADS * dim
    return mx.arange(first, first + size).reshape(1, count, _HEADS, dim).swapaxes(1, 2)


def _pass(cache: ChunkedAttentionCache | ChunkedKVCache, count: int) -> tuple[Array, Array]:
    """As models do it; what the new tokens may look at."""
    cache.maybe_trim_front()
    begin = cache.offset
    fetched = cache.update_and_fetch(
        _tokens(begin, count, _KEY_DIM), _tokens(begin, count, _VALUE_DIM)
    )
    keys, values = map(np.array, fetched)
    return keys, values


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_pass_gets_all_of_its_chunk_before_it_and_its_own_tokens(counts: list[int]) -> None:
    cache, theirs = ChunkedAttentionCache(_CHUNK), ChunkedKVCache(_CHUNK)
    for count in counts:
        cache.maybe_trim_front()
        theirs.maybe_trim_front()
        begin, held = cache.start_position, cache.offset - cache.start_position
        assert begin == theirs.offset - theirs.offset % _CHUNK
        assert cache.offset == theirs.offset
        for mine, other in zip(_pass(cache, count), _pass(theirs, count), strict=True):
            np.testing.assert_array_equal(mine, other[:, :, -(held + count) :])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_between_passes_there_is_never_room_for_more_than_a_chunk(counts: list[int]) -> None:
    cache = ChunkedAttentionCache(_CHUNK)
    for count in counts:
        _pass(cache, count)
        held = cache.offset % _CHUNK
        assert (cache.keys is None) == (held == 0)
        assert cache.keys is None or held <= cache.keys.shape[2] <= _CHUNK == cache.max_size
        assert cache.nbytes <= _CHUNK * _HEADS * (_KEY_DIM + _VALUE_DIM) * 4


def test_a_long_chunk_gets_room_by_the_block() -> None:
    cache = ChunkedAttentionCache(2 * BLOCK_TOKENS + 9)
    widths = []
    for _ in range(2 * BLOCK_TOKENS + 8):
        _pass(cache, 1)
        assert cache.keys is not None
        widths.append(cache.keys.shape[2])
    assert sorted(set(widths)) == [BLOCK_TOKENS, 2 * BLOCK_TOKENS, 2 * BLOCK_TOKENS + 9]


@pytest.mark.parametrize("length", [1, 5, 11, 12, 13, 24, 30])
def test_two_can_go_on_from_one_state(length: int) -> None:
    cache = ChunkedAttentionCache(_CHUNK)
    _pass(cache, length)
    others = [cache.extract(0), ChunkedAttentionCache.from_state(cache.state)]
    assert others[0].merge([others[0]]) is others[0]
    for cache_of_one in (cache, *others):
        keys, _ = _pass(cache_of_one, 4)
        expected = np.array(_tokens(0, length + 4, _KEY_DIM))[:, :, length - length % _CHUNK :]
        np.testing.assert_array_equal(keys, expected)


def test_rows_do_not_share_one() -> None:
    with pytest.raises(ValueError, match="too many values"):
        ChunkedAttentionCache(_CHUNK).merge(
            [ChunkedAttentionCache(_CHUNK), ChunkedAttentionCache(_CHUNK)]
        )
