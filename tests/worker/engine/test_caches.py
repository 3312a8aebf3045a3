"""Caches of whole models: what they take, and rows that come, go and move."""

import gc
from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from tests.worker.engine.other_models import (
    KINDS,
    TOGETHER,
    WINDOW_TOKENS,
    greedy_with_cache,
)
from tests.worker.engine.watched_network import WatchedNetwork, random_ids
from worker.engine.batch_cache import BatchCache
from worker.engine.caches import (
    Cache,
    CacheLayout,
    blocks_for,
    bytes_of,
    evaluate,
    retain_rows,
)
from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel
from worker.engine.row_cache import BLOCK_TOKENS

_FREED_MEANWHILE = 1024
"""What the device may still free, in bytes, after `synchronize`."""
_KINDS = pytest.mark.parametrize("kind", TOGETHER)


def _prefilled(network: Any, layout: CacheLayout, prompts: Sequence[list[int]]) -> Cache:
    """All tokens but the last of each; shorter prompts are padded."""
    longest = max(map(len, prompts))
    cache = layout.new_cache(len(prompts), longest)
    if longest > 1:
        padded = [[*ids[:-1], *[0] * (longest - len(ids))] for ids in prompts]
        network(mx.array(padded), cache=cache)
        evaluate(cache)
    return cache


def _batch(network: Any, layout: CacheLayout, prompts: Sequence[list[int]]) -> BatchCache:
    cache = _prefilled(network, layout, prompts)
    return BatchCache.of(cache, [len(ids) - 1 for ids in prompts], layout)


def _steps(network: Any, cache: BatchCache, rows: list[list[int]], count: int) -> None:
    """Every row gets its `count` likeliest tokens."""
    for _ in range(count):
        width = blocks_for(cache.rows.longest + 1)
        if cache.width < width:
            cache.resize(cache.slots, width)
        logits = network(mx.array([[row[-1]] for row in rows]), cache=cache.layers)
        cache.rows.advance()
        likeliest = cast(list[int], mx.argmax(logits[:, -1], axis=-1).tolist())
        for row, best in zip(rows, likeliest, strict=True):
            row.append(best)


# What caches take.


@pytest.mark.parametrize("tokens", [1, 200, 256, 257, 1000])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_layout_knows_the_bytes_of_a_new_cache(
    model: LoadedModel, rows: int, tokens: int
) -> None:
    gc.collect()  # what earlier tests left behind must not be freed meanwhile,
    mx.synchronize()  # nor what the device's last task still holds
    before = mx.get_active_memory()
    cache = model.layout.new_cache(rows, tokens)
    evaluate(cache)
    size = model.layout.bytes(rows, tokens)
    assert bytes_of(cache) == size
    grown = mx.get_active_memory() - before + _FREED_MEANWHILE
    assert size <= grown <= size * 1.05 + 65_536
    assert size == rows * blocks_for(tokens) * model.layout.token_bytes


def test_blocks_hold_so_many_tokens_and_hardly_more() -> None:
    assert [blocks_for(tokens) for tokens in (0, 1, 256, 257, 512)] == [0, 256, 256, 512, 512]
    assert BLOCK_TOKENS == 256


@_KINDS
@pytest.mark.parametrize("tokens", [2 * WINDOW_TOKENS, 300])
def test_rows_that_decode_take_what_the_layout_says_once_their_windows_are_full(
    networks: dict[str, Any], kind: str, tokens: int
) -> None:
    network = networks[kind]
    layout = CacheLayout(network)
    rows = [random_ids(tokens, i) for i in range(3)]
    cache = _batch(network, layout, rows)
    _steps(network, cache, rows, 3)
    assert cache.nbytes == layout.bytes(3, tokens)


@pytest.mark.parametrize("place", range(2))
def test_bytes_at_is_what_the_cache_takes_after_such_a_resize(
    model: LoadedModel, networks: dict[str, Any], place: int
) -> None:
    network = [model.network, networks["convolutions"]][place]
    cache = _batch(network, CacheLayout(network), [random_ids(9, i) for i in range(3)])
    for slots, width in ((3, 512), (3, 256), (5, 256), (7, 1024), (3, 9), (4, 256)):
        expected = cache.bytes_at(slots, width)
        cache.resize(slots, width)
        assert (cache.slots, cache.width) == (slots, width)
        if place == 0:
            assert cache.nbytes == expected
            assert cache.layer_bytes * len(cache.layers) == expected
        else:  # states have no free slots: they are charged for as if they had
            assert cache.nbytes <= expected
        assert cache.bytes_at(cache.slots, cache.width) >= cache.nbytes


@_KINDS
def test_layers_that_cannot_be_given_room_have_room_for_all(
    networks: dict[str, Any], kind: str
) -> None:
    network = networks[kind]
    cache = _batch(network, CacheLayout(network), [random_ids(9, i) for i in range(3)])
    assert cache.slots == 3
    assert cache.width >= 256
    assert cache.bytes_at(6, max(cache.width, 256)) == 2 * cache.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_only_plain_caches_allow_padding_and_all_but_those_with_chunks_batching(
    model: LoadedModel, networks: dict[str, Any], kind: str
) -> None:
    assert model.layout.allows_padding and model.layout.allows_batching
    layout = CacheLayout(networks[kind])
    assert (layout.allows_padding, layout.allows_batching) == (False, kind in TOGETHER)


@pytest.mark.parametrize(
    "kind",
    ["sliding windows", "convolutions", "pairs", "linear attention", "chunked attention"],
)
def test_the_longest_text_fits_while_its_last_block_is_made(
    networks: dict[str, Any], kind: str
) -> None:
    network = networks[kind]
    layout = CacheLayout(network)
    budget = 12 * layout.bytes(1, BLOCK_TOKENS)
    most = KVAccounting(budget).max_tokens(layout)
    cache = _batch(network, layout, [random_ids(5, 1)])
    cache.resize(1, most - BLOCK_TOKENS)
    assert cache.bytes_at(1, most) + cache.layer_bytes <= budget


def test_a_text_that_just_fits_leaves_room_to_copy_the_largest_layer(
    networks: dict[str, Any],
) -> None:
    layout = CacheLayout(networks["sliding windows"])
    cache = _batch(networks["sliding windows"], layout, [random_ids(300, 1)])
    growing = cache.layer_bytes / cache.width
    assert growing == layout.token_bytes  # a single layer grows


# Rows.


@pytest.mark.parametrize("kind", ["tiny", *TOGETHER])
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_layers_of_any_kind_join_leave_and_move_and_get_their_own_tokens(
    model: LoadedModel, networks: dict[str, Any], kind: str, seed: int
) -> None:
    chance = np.random.default_rng([3, seed])
    network = model.network if kind == "tiny" else networks[kind]
    layout = CacheLayout(network)
    lengths = (3, 250, 20, 33, 1, 25)  # one crosses a block
    prompts = [random_ids(length, seed) for length in lengths]
    waiting = [list(ids) for ids in prompts]
    rows = [waiting.pop(0)]
    cache = _batch(network, layout, rows)
    done: list[list[int]] = []
    while rows:
        _steps(network, cache, rows, int(chance.integers(1, 9)))
        if waiting:
            rows.append(waiting.pop(0))
            cache.resize(len(rows), max(cache.width, blocks_for(len(rows[-1]))))
            cache.extend(_batch(network, layout, rows[-1:]))
        if len(rows) > 2:
            places = chance.permutation(len(rows)).tolist()
            cache, rows = cache.take(places), [rows[place] for place in places]
        if len(rows) > 3 or not waiting:
            gone = int(chance.integers(len(rows)))
            done.append(rows[gone])
            rows = [rows[place] for place in cache.remove([gone])]
    assert len(done) == len(prompts)
    for row in done:
        (ids,) = [ids for ids in prompts if row[: len(ids)] == ids]
        assert row[len(ids) :] == greedy_with_cache(network, ids, len(row) - len(ids))


def test_those_who_stay_keep_their_places_and_only_the_last_ones_move(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    def cache() -> BatchCache:
        return _batch(network.real, model.layout, [random_ids(4 + i, i) for i in range(6)])

    assert cache().remove([]) == [0, 1, 2, 3, 4, 5]
    assert cache().remove([5]) == [0, 1, 2, 3, 4]
    assert cache().remove([0]) == [5, 1, 2, 3, 4]
    assert cache().remove([1, 3]) == [0, 4, 2, 5]
    assert cache().remove([0, 5, 2]) == [3, 1, 4]
    assert cache().remove(range(6)) == []
    held = cache()
    held.remove([0, 2])
    assert held.rows.lengths == [7, 4, 8, 6]


def test_rows_that_hold_nothing_yet_can_leave(model: LoadedModel, network: WatchedNetwork) -> None:
    prompts = [random_ids(1, i) for i in range(4)]
    cache = _batch(network.real, model.layout, prompts)
    rows = [list(prompts[place]) for place in cache.remove([0, 1])]
    assert [row[0] for row in rows] == [prompts[2][0], prompts[3][0]]
    _steps(network.real, cache, rows, 4)
    for row in rows:
        assert row[1:] == greedy_with_cache(network.real, row[:1], 4)


def test_a_cache_without_rows_takes_others_again(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    cache = _batch(network.real, model.layout, [random_ids(5, 1), random_ids(7, 2)])
    cache.remove([0, 1])
    assert len(cache) == 0
    row = random_ids(6, 3)
    cache.extend(_batch(network.real, model.layout, [row]))
    rows = [list(row)]
    _steps(network.real, cache, rows, 4)
    assert rows[0][6:] == greedy_with_cache(network.real, row, 4)


@pytest.mark.parametrize("kind", ["tiny", *TOGETHER])
@pytest.mark.parametrize("places", [[0], [2], [2, 0], [1, 2]], ids=str)
def test_prompts_can_leave_the_cache_before_it_is_full(
    model: LoadedModel, networks: dict[str, Any], kind: str, places: list[int]
) -> None:
    network = model.network if kind == "tiny" else networks[kind]
    layout = CacheLayout(network)
    prompts = [random_ids(20, i) for i in range(3)]
    cache = layout.new_cache(3, 20)
    network(mx.array([ids[:8] for ids in prompts]), cache=cache)
    retain_rows(cache, places, 20)
    network(mx.array([prompts[place][8:-1] for place in places]), cache=cache)
    rows = [list(prompts[place]) for place in places]
    _steps(network, BatchCache.of(cache, [19] * len(places), layout), rows, 6)
    for place, row in zip(places, rows, strict=True):
        assert row[20:] == greedy_with_cache(network, prompts[place], 6)
