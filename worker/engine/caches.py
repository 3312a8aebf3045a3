"""KV caches of prompts, and what those of a model look like: what touches mlx-lm's cache classes.

Layers of chunked attention get a cache of ours from the start. Other kinds (sliding window,
recurrent, ...) are mlx-lm's own batch caches; those of which there is no batch serve one row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, make_prompt_cache

from worker.engine.chunk_cache import ChunkCache
from worker.engine.opaque_cache import arrays_of, can_be_copied, is_whole
from worker.engine.row_cache import BLOCK_TOKENS

_MEASURED_TOKENS = 127, 255
"""Not whole powers of two: what waits to be compressed by groups takes its most there."""

Cache = list[Any]
"""One entry a layer, as models want it; an entry may be a list of several caches."""


def leaves(cache: Iterable[Any]) -> Iterator[Any]:
    """The caches of all layers, those of a `CacheList` one by one."""
    for layer in cache:
        if isinstance(layer, CacheList):
            yield from leaves(layer.caches)
        else:
            yield layer


def evaluate(cache: Cache) -> None:
    """Wait until everything that was put into it is computed."""
    mx.eval([arrays_of(leaf) if is_whole(leaf) else leaf.state for leaf in leaves(cache)])


def keep_rows(cache: Cache, places: Sequence[int], tokens: int) -> None:
    """Drop all other rows of the cache of prompts, and room for more than `tokens` of each;
    copies what stays."""
    for leaf in leaves(cache):
        if type(leaf) is KVCache:
            chosen, width = mx.array(list(places)), blocks_for(tokens)
            leaf.keys = mx.contiguous(leaf.keys[chosen, :, :width])
            leaf.values = mx.contiguous(leaf.values[chosen, :, :width])
        else:
            leaf.filter(list(places))


def bytes_of(cache: Cache) -> int:
    return sum(int(leaf.nbytes) for leaf in leaves(cache))


def whole_bytes(leaf: Any) -> int:
    """What is in a cache that is kept whole; other classes know it themselves."""
    return sum(array.nbytes for array in arrays_of(leaf)) if is_whole(leaf) else int(leaf.nbytes)


def map_leaves(function: Callable[[Any], Any], layer: Any) -> Any:
    """Make a layer of another one, leaf by leaf."""
    if not isinstance(layer, CacheList):
        return function(layer)
    return CacheList(*(map_leaves(function, part) for part in layer.caches))


def empty_cache(network: Any) -> Cache:
    """Of one row, for prefill."""

    def ours(leaf: Any) -> Any:
        return ChunkCache(leaf.chunk_size) if isinstance(leaf, ChunkedKVCache) else leaf

    return [map_leaves(ours, layer) for layer in make_prompt_cache(network)]


_GROUPED_HEADS = frozenset({"gemma2"})
"""Modules of mlx-lm that do not join query heads with the key heads that they share."""


def blocks_for(tokens: int) -> int:
    """The width that holds so many tokens, in tokens."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


class CacheLayout:
    """What the cache of a model looks like, as a few tokens show, and what it takes.

    Args:
        batches_rows: whether its rows may share a pass, where their caches allow it.

    Attributes:
        token_bytes: per token of a row, in layers that grow with the text.
        whole_token_bytes: of these, what is in caches that serve one row and are kept whole.
        layer_token_bytes: of these, what is in the largest layer.
        row_bytes: per row, in all other layers, when their windows and chunks are full.
        allows_padding: rows may hold more than their own tokens, to be overwritten later.
        allows_batching: rows at different positions may share a cache; else each has its own.
        allows_keeping: what is in a cache can be copied, to go on from it later.
        groups_heads: masks need an axis more, for the query heads that share a head of keys.
        shapes: of the layers that grow, heads, size and type of keys and of values; no heads where
            nothing is ever put.
        description: differs where the caches do.
    """

    def __init__(self, network: Any, batches_rows: bool = True) -> None:
        self.network = network
        cache, sizes = _measured(network)
        kinds = list(leaves(cache))
        whole = [leaf for leaf in kinds if is_whole(leaf)]
        self.token_bytes = sum(token for token, _ in sizes)
        self.whole_token_bytes = sum(
            token for leaf, (token, _) in zip(kinds, sizes, strict=True) if is_whole(leaf)
        )
        self.layer_token_bytes = max((token for token, _ in sizes), default=0)
        self.row_bytes = sum(row for _, row in sizes)
        self._chunks = [
            (row, leaf.chunk_size)
            for leaf, (_, row) in zip(kinds, sizes, strict=True)
            if isinstance(leaf, ChunkCache)
        ]
        self.shapes = [_shapes(leaf) for leaf in kinds if type(leaf) is KVCache]
        self.allows_padding = len(self.shapes) == len(sizes)
        have_one_row = whole or any(isinstance(leaf, ChunkCache) for leaf in kinds)
        self.allows_batching = batches_rows and not have_one_row
        self.allows_keeping = all(map(can_be_copied, whole))
        self.groups_heads = _groups_heads(network)
        names = [type(leaf).__name__ for leaf in kinds]
        self.description = f"{names} {self.shapes} {self.row_bytes}"

    def bytes(self, rows: int, tokens: int) -> int:
        """What rows of up to `tokens` tokens take together."""
        return rows * (blocks_for(tokens) * self.token_bytes + self.row_bytes_at(tokens))

    def row_bytes_at(self, tokens: int) -> int:
        """Of a row with room for so many tokens, in layers that do not grow with all of the text:
        windows count as full from the start, chunks as far as they are there."""
        room = blocks_for(tokens)
        missing = [full * (size - min(room, size)) // size for full, size in self._chunks]
        return self.row_bytes - sum(missing)

    def joined(self, rows: Sequence[Any]) -> Any:
        """The caches of one layer for single rows as one for all of them; where each row has its
        own, there is only one, and it stays what mlx-lm has for a row alone."""
        if self.allows_batching:
            return rows[0].merge(rows)
        (only,) = rows
        return only

    def new_cache(self, rows: int, tokens: int) -> Cache:
        """An empty cache with room for so many tokens of each row; all rows grow together."""
        shapes = iter(self.shapes)

        def new_leaf(first: Any) -> Any:
            if type(first) is not KVCache:
                return self.joined([first] * rows)
            first.keys, first.values = (
                mx.zeros((rows, heads, blocks_for(tokens), dim), dtype)
                for heads, dim, dtype in next(shapes)
            )
            return first

        return [map_leaves(new_leaf, layer) for layer in empty_cache(self.network)]


def _groups_heads(network: Any) -> bool:
    """Whether scores are computed [B, KV heads, heads of a group, L, S] and masked as they are."""
    if type(network).__module__.rpartition(".")[2] not in _GROUPED_HEADS:
        return False
    return bool(network.args.num_attention_heads > network.args.num_key_value_heads)


def _measured(network: Any) -> tuple[Cache, list[tuple[int, int]]]:
    """A cache with a few tokens; of each of its leaves the bytes a token if it grows, and the bytes
    a row if it does not, or at first."""
    cache = empty_cache(network)
    if not any(map(is_whole, leaves(cache))):
        _pass(network, cache, 1)
        return cache, [_sizes(leaf) for leaf in leaves(cache)]
    # What such a layer takes is linear in the tokens, from some length on.
    few, many = _MEASURED_TOKENS
    _pass(network, cache, few)
    before = [whole_bytes(leaf) for leaf in leaves(cache)]
    _pass(network, cache, many - few)
    sizes = []
    for leaf, fewer in zip(leaves(cache), before, strict=True):
        token = -(-(whole_bytes(leaf) - fewer) // (many - few))
        row = max(0, fewer - few * token)
        sizes.append((token, row) if is_whole(leaf) else _sizes(leaf))
    return cache, sizes


def _pass(network: Any, cache: Cache, tokens: int) -> None:
    network(mx.zeros((1, tokens), dtype=mx.uint32), cache=cache)
    evaluate(cache)


def _shapes(layer: KVCache) -> list[tuple[int, int, mx.Dtype]]:
    """Heads, size and type of keys and values."""
    if layer.keys is None:  # its layer has no attention
        return [(0, 0, mx.float32)] * 2
    return [(each.shape[1], each.shape[3], each.dtype) for each in (layer.keys, layer.values)]


def _sizes(leaf: Any) -> tuple[int, int]:
    """Bytes a token of a cache that grows, bytes a row of one that does not."""
    keys = getattr(leaf, "keys", None)
    if keys is None:
        return 0, int(leaf.nbytes)
    token = int(leaf.nbytes) // int(keys.shape[2])
    limit = getattr(leaf, "max_size", None)
    return (0, token * int(limit)) if limit else (token, 0)
