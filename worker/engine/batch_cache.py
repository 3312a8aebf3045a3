"""The cache of a whole model for rows that decode together.

Layers whose keys and values grow with the text get the row caches of ours once a prompt is
prefilled. Other kinds stay what prefill filled: mlx-lm's own batch caches, or, where rows are
served alone, the cache of the only row.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from worker.engine.caches import (
    Cache,
    CacheLayout,
    blocks_for,
    bytes_of,
    evaluate,
    leaves,
    map_leaves,
    whole_bytes,
)
from worker.engine.opaque_cache import is_whole
from worker.engine.row_cache import GroupedRowKVCache, RowKVCache, Rows, SingleRowKVCache


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
        self._reserved = blocks_for(rows.longest + 1)

    @classmethod
    def of(cls, prefilled: Cache, lengths: Sequence[int], layout: CacheLayout) -> "BatchCache":
        """Take over the cache of prompts; rows may hold more than their `lengths`."""
        rows = Rows(lengths)
        kind = _row_cache(layout)

        def taken_over(leaf: Any) -> Any:
            return kind.of(leaf, rows) if type(leaf) is KVCache else leaf

        return cls([map_leaves(taken_over, layer) for layer in prefilled], rows, layout)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """What it takes, as the layout counts windows and chunks, and what is kept whole."""
        return bytes_of(self._growing) + len(self.rows) * self._other_bytes(self.width)

    @property
    def slots(self) -> int:
        """Rows there is room for."""
        return next((leaf.slots for leaf in self._growing), len(self.rows))

    @property
    def width(self) -> int:
        """Tokens of a row there is room for; no limit where mlx-lm's caches see to it and take no
        more for a longer text. What is kept whole makes room by itself, and is charged for it."""
        at_will = self._reserved if self._layout.whole_token_bytes else sys.maxsize
        return next((leaf.width for leaf in self._growing), at_will)

    def bytes_at(self, slots: int, width: int) -> int:
        """What it would take with other room."""
        growing = bytes_of(self._growing)
        if growing:
            growing = growing // (self.slots * self.width) * slots * width
        return growing + slots * self._other_bytes(width)

    def _other_bytes(self, width: int) -> int:
        """Of a row, in layers that are no row caches."""
        whole = self._layout.whole_token_bytes
        return self._layout.row_bytes_at(width) + (width * whole if whole else 0)

    @property
    def layer_bytes(self) -> int:
        """Of the largest layer: it exists twice while it is copied."""
        copied = [leaf for leaf in self._leaves if isinstance(leaf, RowKVCache) or is_whole(leaf)]
        return max(map(whole_bytes, copied), default=0)

    def resize(self, slots: int, width: int) -> None:
        """Make or give back room: copies, one layer after the other."""
        if (slots, width) == (self.slots, self.width):
            return
        self._reserved = width
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
            return self._layout.joined([leaf.extract(place) for place in places])

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


def _row_cache(layout: CacheLayout) -> type[RowKVCache]:
    if not layout.allows_batching:
        return SingleRowKVCache
    return GroupedRowKVCache if layout.groups_heads else RowKVCache


def _order_without(count: int, gone: set[int]) -> list[int]:
    """Rows that stay, each in its place if possible, the last ones in the places of the gone."""
    staying = count - len(gone)
    order = list(range(staying))
    movers = [place for place in range(staying, count) if place not in gone]
    for hole, mover in zip(sorted(gone & set(order)), movers, strict=True):
        order[hole] = mover
    return order
