"""KV caches of prompts and of decoding rows: what touches mlx-lm's cache classes.

Layers whose keys and values grow with the text get the row caches of ours once a prompt is
prefilled, those of chunked attention one of ours from the start. Other kinds (sliding window,
recurrent, ...) stay mlx-lm's own batch caches.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, make_prompt_cache

from shared.errors import ModelError
from worker.engine.chunk_cache import ChunkCache
from worker.engine.row_cache import BLOCK_TOKENS, RowKVCache, Rows, SingleRowKVCache

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
    mx.eval([leaf.state for leaf in leaves(cache)])


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


def blocks_for(tokens: int) -> int:
    """The width that holds so many tokens, in tokens."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


class CacheLayout:
    """What the cache of a model looks like, as one token shows, and what it takes.

    Attributes:
        token_bytes: per token of a row, in layers that grow with the text.
        row_bytes: per row, in all other layers, when their windows and chunks are full.
        allows_padding: rows may hold more than their own tokens, to be overwritten later.
        allows_batching: rows at different positions may share a cache; else each has its own.
        layers: how many of them grow with the text.
        shapes: of the layers that grow, heads, size and type of keys and of values.
        description: differs where the caches do.

    Raises:
        ModelError: the model's layers cannot be batched.
    """

    def __init__(self, network: Any) -> None:
        self.network = network
        cache = empty_cache(network)
        for leaf in leaves(cache):
            if not hasattr(leaf, "merge"):
                raise ModelError(f"a cache of the kind {type(leaf).__name__} cannot be batched")
        network(mx.zeros((1, 1), dtype=mx.uint32), cache=cache)
        evaluate(cache)
        sizes = [_sizes(leaf) for leaf in leaves(cache)]
        self.token_bytes = sum(token for token, _ in sizes)
        self.row_bytes = sum(row for _, row in sizes)
        self._chunks = [
            (row, leaf.chunk_size)
            for leaf, (_, row) in zip(leaves(cache), sizes, strict=True)
            if isinstance(leaf, ChunkCache)
        ]
        self.shapes = [_shapes(leaf) for leaf in leaves(cache) if type(leaf) is KVCache]
        self.allows_padding = len(self.shapes) == len(sizes)
        self.allows_batching = not any(isinstance(leaf, ChunkCache) for leaf in leaves(cache))
        self.layers = len(self.shapes)
        kinds = [type(leaf).__name__ for leaf in leaves(cache)]
        self.description = f"{kinds} {self.shapes} {self.row_bytes}"

    def bytes(self, rows: int, tokens: int) -> int:
        """What rows of up to `tokens` tokens take together."""
        return rows * (blocks_for(tokens) * self.token_bytes + self.row_bytes_at(tokens))

    def row_bytes_at(self, tokens: int) -> int:
        """Of a row with room for so many tokens, in layers that do not grow with all of the text:
        windows count as full from the start, chunks as far as they are there."""
        room = blocks_for(tokens)
        missing = [full * (size - min(room, size)) // size for full, size in self._chunks]
        return self.row_bytes - sum(missing)

    def new_cache(self, rows: int, tokens: int) -> Cache:
        """An empty cache with room for so many tokens of each row; all rows grow together."""
        shapes = iter(self.shapes)

        def new_leaf(first: Any) -> Any:
            if type(first) is not KVCache:
                return first.merge([first] * rows)
            first.keys, first.values = (
                mx.zeros((rows, heads, blocks_for(tokens), dim), dtype)
                for heads, dim, dtype in next(shapes)
            )
            return first

        return [map_leaves(new_leaf, layer) for layer in empty_cache(self.network)]


def _shapes(layer: KVCache) -> list[tuple[int, int, mx.Dtype]]:
    """Heads, size and type of keys and values."""
    return [(each.shape[1], each.shape[3], each.dtype) for each in (layer.keys, layer.values)]


def _sizes(leaf: Any) -> tuple[int, int]:
    """Bytes a token of a cache that grows, bytes a row of one that does not."""
    keys = getattr(leaf, "keys", None)
    if keys is None:
        return 0, int(leaf.nbytes)
    token = int(leaf.nbytes) // int(keys.shape[2])
    limit = getattr(leaf, "max_size", None)
    return (0, token * int(limit)) if limit else (token, 0)


class BatchCache:
    """The cache of a whole model for rows that decode together.

    Attributes:
        layers: what the model gets.
        rows: how many tokens each row holds.
    """

    def __init__(self, layers: Cache, rows: Rows, layout: CacheLayout) -> None:
        self.layers = layers
        self.rows = rows
        self._layout = layout
        self._leaves = list(leaves(layers))
        self._growing = [leaf for leaf in self._leaves if isinstance(leaf, RowKVCache)]
        self._others = [leaf for leaf in self._leaves if not isinstance(leaf, RowKVCache)]

    @classmethod
    def of(cls, prefilled: Cache, lengths: Sequence[int], layout: CacheLayout) -> "BatchCache":
        """Take over the cache of prompts; rows may hold more than their `lengths`."""
        rows = Rows(lengths)
        kind = RowKVCache if layout.allows_batching else SingleRowKVCache

        def taken_over(leaf: Any) -> Any:
            return kind.of(leaf, rows) if type(leaf) is KVCache else leaf

        return cls([map_leaves(taken_over, layer) for layer in prefilled], rows, layout)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """What it takes, as the layout counts windows and chunks."""
        return bytes_of(self._growing) + len(self.rows) * self._layout.row_bytes_at(self.width)

    @property
    def slots(self) -> int:
        """Rows there is room for."""
        return next((leaf.slots for leaf in self._growing), len(self.rows))

    @property
    def width(self) -> int:
        """Tokens of a row there is room for; no limit where mlx-lm's caches see to it."""
        return next((leaf.width for leaf in self._growing), sys.maxsize)

    def bytes_at(self, slots: int, width: int) -> int:
        """What it would take with other room."""
        growing = bytes_of(self._growing)
        if growing:
            growing = growing // (self.slots * self.width) * slots * width
        return growing + slots * self._layout.row_bytes_at(width)

    @property
    def layer_bytes(self) -> int:
        """Of the largest layer: it exists twice while it is copied."""
        return max((leaf.nbytes for leaf in self._growing), default=0)

    def resize(self, slots: int, width: int) -> None:
        """Make or give back room: copies, one layer after the other."""
        if (slots, width) == (self.slots, self.width):
            return
        for leaf in self._growing:
            leaf.resize(slots, width)
            mx.eval(leaf.state)

    def extend(self, other: "BatchCache") -> None:
        """Take over the rows of another cache; there must be room for them."""
        first, length = len(self.rows), other.rows.longest
        for mine, theirs in zip(self._growing, other._growing, strict=True):
            mine.write(theirs, first, length)
        for mine, theirs in zip(self._others, other._others, strict=True):
            mine.extend(theirs)
        evaluate(self.layers)  # so that the other's memory is free
        self.rows.set([*self.rows.lengths, *other.rows.lengths])

    def take(self, places: Sequence[int]) -> "BatchCache":
        """Some rows as a cache of their own; copies them."""
        rows = Rows([self.rows.lengths[place] for place in places])
        width = blocks_for(rows.longest + 1)

        def taken(leaf: Any) -> Any:
            if isinstance(leaf, RowKVCache):
                return leaf.take(places, rows, width)
            parts = [leaf.extract(place) for place in places]
            return parts[0].merge(parts)

        layers = [map_leaves(taken, layer) for layer in self.layers]
        evaluate(layers)
        return BatchCache(layers, rows, self._layout)

    def remove(self, places: Iterable[int]) -> list[int]:
        """Drop rows; later ones move into their places.

        Returns:
            The places before of the rows that stay, in their new order.
        """
        order = _order_without(len(self.rows), set(places))
        targets = [place for place, source in enumerate(order) if source != place]
        if targets and self.rows.longest:  # MLX divides by the width of what is written: not by 0
            sources = [order[place] for place in targets]
            copies = [leaf.copies(sources) for leaf in self._growing]
            mx.async_eval(copies)  # before the writes, which happen in place only when alone
            for leaf, copy in zip(self._growing, copies, strict=True):
                leaf.put(targets, copy)
        if order:
            for leaf in self._others:
                leaf.filter(order)
        self.rows.set([self.rows.lengths[place] for place in order])
        return order


def _order_without(count: int, gone: set[int]) -> list[int]:
    """Rows that stay, each in its place if possible, the last ones in the places of the gone."""
    staying = count - len(gone)
    order = list(range(staying))
    movers = [place for place in range(staying, count) if place not in gone]
    for hole, mover in zip(sorted(gone & set(order)), movers, strict=True):
        order[hole] = mover
    return order
