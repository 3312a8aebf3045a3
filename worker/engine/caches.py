"""KV caches of prompts, and the layout of a model's cache; wraps mlx-lm's cache classes.

Layers of chunked attention get this project's cache from the start. Other kinds (sliding window,
recurrent, ...) are mlx-lm's batch caches; classes without a batch version serve one row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, make_prompt_cache

from worker.engine.chunked_attention_cache import ChunkedAttentionCache
from worker.engine.opaque_cache import arrays_of, is_copyable, is_opaque
from worker.engine.row_cache import BLOCK_TOKENS

_MEASURED_TOKENS = 127, 255
"""Not powers of two: just below them, tokens that wait to be compressed in groups take the most
memory."""

Cache = list[Any]
"""One entry per layer, as models expect; an entry may be a list of several caches."""


def leaves(cache: Iterable[Any]) -> Iterator[Any]:
    """Yield the caches of all layers, and each cache of a `CacheList` separately."""
    for layer in cache:
        if isinstance(layer, CacheList):
            yield from leaves(layer.caches)
        else:
            yield layer


def evaluate(cache: Cache) -> None:
    """Wait until all contents of a cache are computed."""
    mx.eval([arrays_of(leaf) if is_opaque(leaf) else leaf.state for leaf in leaves(cache)])


def retain_rows(cache: Cache, indices: Sequence[int], tokens: int) -> None:
    """Drop all other rows of a prompt cache, and capacity beyond `tokens` per row; copies the
    rows that stay."""
    for leaf in leaves(cache):
        if type(leaf) is KVCache:
            chosen, width = mx.array(list(indices)), blocks_for(tokens)
            leaf.keys = mx.contiguous(leaf.keys[chosen, :, :width])
            leaf.values = mx.contiguous(leaf.values[chosen, :, :width])
        else:
            leaf.filter(list(indices))


def bytes_of(cache: Cache) -> int:
    return sum(int(leaf.nbytes) for leaf in leaves(cache))


def leaf_bytes(leaf: Any) -> int:
    """Return the bytes of a cache; opaque classes have no `nbytes`."""
    return sum(array.nbytes for array in arrays_of(leaf)) if is_opaque(leaf) else int(leaf.nbytes)


def map_leaves(function: Callable[[Any], Any], layer: Any) -> Any:
    """Apply a function to each leaf of a layer; a `CacheList` becomes a new `CacheList`."""
    if not isinstance(layer, CacheList):
        return function(layer)
    return CacheList(*(map_leaves(function, part) for part in layer.caches))


def empty_cache(network: Any) -> Cache:
    """Return the empty cache of one row, for prefill."""

    def with_chunk_cache(leaf: Any) -> Any:
        return ChunkedAttentionCache(leaf.chunk_size) if isinstance(leaf, ChunkedKVCache) else leaf

    return [map_leaves(with_chunk_cache, layer) for layer in make_prompt_cache(network)]


_GROUPED_HEADS = frozenset({"gemma2"})
"""Modules of mlx-lm that keep an axis for the query heads that share a key head."""


def blocks_for(tokens: int) -> int:
    """Round a number of tokens up to whole cache blocks."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


class CacheLayout:
    """The structure of a model's cache, and its memory; measured by a forward pass of a few tokens.

    Args:
        batches_rows: whether its rows may share a pass, if their caches allow it.

    Attributes:
        token_bytes: bytes per token of a row, in layers that grow with the sequence.
        opaque_token_bytes: the part of `token_bytes` in opaque caches, which serve one row.
        layer_token_bytes: the part of `token_bytes` in the largest layer.
        row_bytes: bytes per row in all other layers, with full windows and chunks.
        allows_padding: rows may hold more than their own tokens, to be overwritten later.
        allows_batching: rows at different positions may share a cache; else each has its own.
        allows_caching: the content of a cache can be copied, so that a later request reuses it.
        groups_heads: masks need one more axis, for the query heads that share a key head.
        shapes: heads, size and dtype of the keys and of the values of each growing layer; 0 heads
            if the layer stores nothing.
        description: identifies the layout; differs if the caches differ.
    """

    def __init__(self, network: Any, batches_rows: bool = True) -> None:
        self.network = network
        cache, sizes = _measured(network)
        kinds = list(leaves(cache))
        opaque = [leaf for leaf in kinds if is_opaque(leaf)]
        self.token_bytes = sum(token for token, _ in sizes)
        self.opaque_token_bytes = sum(
            token for leaf, (token, _) in zip(kinds, sizes, strict=True) if is_opaque(leaf)
        )
        self.layer_token_bytes = max((token for token, _ in sizes), default=0)
        self.row_bytes = sum(row for _, row in sizes)
        self._chunks = [
            (row, leaf.chunk_size)
            for leaf, (_, row) in zip(kinds, sizes, strict=True)
            if isinstance(leaf, ChunkedAttentionCache)
        ]
        self.shapes = [_shapes(leaf) for leaf in kinds if type(leaf) is KVCache]
        self.allows_padding = len(self.shapes) == len(sizes)
        have_one_row = opaque or any(isinstance(leaf, ChunkedAttentionCache) for leaf in kinds)
        self.allows_batching = batches_rows and not have_one_row
        self.allows_caching = all(map(is_copyable, opaque))
        self.groups_heads = _groups_heads(network)
        names = [type(leaf).__name__ for leaf in kinds]
        self.description = f"{names} {self.shapes} {self.row_bytes}"

    def bytes(self, rows: int, tokens: int) -> int:
        """Return the bytes of a cache of `rows` rows of up to `tokens` tokens."""
        return rows * (blocks_for(tokens) * self.token_bytes + self.row_bytes_at(tokens))

    def row_bytes_at(self, tokens: int) -> int:
        """Return the bytes of a row with capacity for `tokens` tokens in layers of bounded size.
        Windows count as full from the start, chunks only as far as they are allocated."""
        width = blocks_for(tokens)
        missing = [full * (size - min(width, size)) // size for full, size in self._chunks]
        return self.row_bytes - sum(missing)

    def joined(self, rows: Sequence[Any]) -> Any:
        """Merge the single-row caches of one layer. Without batching there is only one row, and its
        cache is returned unchanged."""
        if self.allows_batching:
            return rows[0].merge(rows)
        (only,) = rows
        return only

    def new_cache(self, rows: int, tokens: int) -> Cache:
        """Return an empty cache with capacity for `tokens` per row, in which all rows have the same
        length."""
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
    """Whether the network computes and masks scores [B, KV heads, heads of a group, L, S]."""
    if type(network).__module__.rpartition(".")[2] not in _GROUPED_HEADS:
        return False
    return bool(network.args.num_attention_heads > network.args.num_key_value_heads)


def _measured(network: Any) -> tuple[Cache, list[tuple[int, int]]]:
    """Return a cache with a few tokens, and for each leaf its bytes per token (0 if it does not
    grow) and its fixed bytes per row."""
    cache = empty_cache(network)
    if not any(map(is_opaque, leaves(cache))):
        _pass(network, cache, 1)
        return cache, [_sizes(leaf) for leaf in leaves(cache)]
    # The size of an opaque layer is linear in the tokens, from some length on.
    few, many = _MEASURED_TOKENS
    _pass(network, cache, few)
    before = [leaf_bytes(leaf) for leaf in leaves(cache)]
    _pass(network, cache, many - few)
    sizes = []
    for leaf, fewer in zip(leaves(cache), before, strict=True):
        token = -(-(leaf_bytes(leaf) - fewer) // (many - few))
        row = max(0, fewer - few * token)
        sizes.append((token, row) if is_opaque(leaf) else _sizes(leaf))
    return cache, sizes


def _pass(network: Any, cache: Cache, tokens: int) -> None:
    network(mx.zeros((1, tokens), dtype=mx.uint32), cache=cache)
    evaluate(cache)


def _shapes(layer: KVCache) -> list[tuple[int, int, mx.Dtype]]:
    """Return heads, size and dtype of keys and values."""
    if layer.keys is None:  # a layer without attention
        return [(0, 0, mx.float32)] * 2
    return [(each.shape[1], each.shape[3], each.dtype) for each in (layer.keys, layer.values)]


def _sizes(leaf: Any) -> tuple[int, int]:
    """Return the bytes per token (0 if the cache does not grow) and the fixed bytes per row."""
    keys = getattr(leaf, "keys", None)
    if keys is None:
        return 0, int(leaf.nbytes)
    token = int(leaf.nbytes) // int(keys.shape[2])
    limit = getattr(leaf, "max_size", None)
    return (0, token * int(limit)) if limit else (token, 0)
