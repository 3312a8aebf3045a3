"""The KV cache of all layers of a model for rows that decode together.

Layers whose keys and values grow with the sequence get this project's row caches once a prompt is
prefilled. Other layers keep the caches that prefill filled: mlx-lm's batch caches, or the cache of
the single row if the model is not batched.
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
    leaf_bytes,
    leaves,
    map_leaves,
)
from worker.engine.opaque_cache import is_opaque
from worker.engine.row_cache import (
    GroupedMaskKVCache,
    MultiRowKVCache,
    RowLengths,
    UnbatchedKVCache,
)


class BatchCache:
    """The KV cache of all layers of a model for rows that decode together.

    Attributes:
        layers: the argument `cache` of the network.
        rows: the number of tokens of each row.
    """

    def __init__(self, layers: Cache, rows: RowLengths, layout: CacheLayout) -> None:
        self.layers = layers
        self.rows = rows
        self._layout = layout
        self._leaves = list(leaves(layers))
        self._growing = [leaf for leaf in self._leaves if isinstance(leaf, MultiRowKVCache)]
        self._others = [leaf for leaf in self._leaves if not isinstance(leaf, MultiRowKVCache)]
        self._reserved = blocks_for(rows.longest + 1)

    @classmethod
    def of(cls, prefilled: Cache, lengths: Sequence[int], layout: CacheLayout) -> "BatchCache":
        """Take over the cache of prompts; rows may hold more than their `lengths`."""
        rows = RowLengths(lengths)
        kind = _row_cache(layout)

        def row_cache(leaf: Any) -> Any:
            return kind.of(leaf, rows) if type(leaf) is KVCache else leaf

        return cls([map_leaves(row_cache, layer) for layer in prefilled], rows, layout)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """The bytes allocated, with windows, chunks and opaque layers as the layout counts them."""
        return bytes_of(self._growing) + len(self.rows) * self._other_bytes(self.width)

    @property
    def slots(self) -> int:
        """The number of rows that are allocated."""
        return next((leaf.slots for leaf in self._growing), len(self.rows))

    @property
    def width(self) -> int:
        """The tokens per row that are allocated; unlimited if all layers are mlx-lm's caches whose
        size does not grow with the sequence. Opaque layers grow by themselves; this value is what
        they are charged for."""
        otherwise = self._reserved if self._layout.opaque_token_bytes else sys.maxsize
        return next((leaf.width for leaf in self._growing), otherwise)

    def bytes_at(self, slots: int, width: int) -> int:
        """Return the bytes of this cache at other numbers of slots and columns."""
        growing = bytes_of(self._growing)
        if growing:
            growing = growing // (self.slots * self.width) * slots * width
        return growing + slots * self._other_bytes(width)

    def _other_bytes(self, width: int) -> int:
        """Return the bytes of a row in layers that are not row caches."""
        opaque = self._layout.opaque_token_bytes
        return self._layout.row_bytes_at(width) + (width * opaque if opaque else 0)

    @property
    def layer_bytes(self) -> int:
        """The bytes of the largest layer: a layer exists twice while it is copied."""
        copied = [
            leaf for leaf in self._leaves if isinstance(leaf, MultiRowKVCache) or is_opaque(leaf)
        ]
        return max(map(leaf_bytes, copied), default=0)

    def resize(self, slots: int, width: int) -> None:
        """Grow or shrink the allocation; copies one layer after the other."""
        if (slots, width) == (self.slots, self.width):
            return
        self._reserved = width
        for leaf in self._growing:
            leaf.resize(slots, width)
            mx.eval(leaf.state)

    def extend(self, other: "BatchCache") -> None:
        """Append the rows of another cache; slots and width must suffice."""
        first, length = len(self.rows), other.rows.longest
        for own, added in zip(self._growing, other._growing, strict=True):
            own.write(added, first, length)
        for own, added in zip(self._others, other._others, strict=True):
            own.extend(added)
        evaluate(self.layers)  # so that the memory of `other` can be freed
        self.rows.set([*self.rows.lengths, *other.rows.lengths])

    def take(self, indices: Sequence[int]) -> "BatchCache":
        """Return some rows as a cache of their own; copies them."""
        rows = RowLengths([self.rows.lengths[index] for index in indices])
        width = blocks_for(rows.longest + 1)

        def selected(leaf: Any) -> Any:
            if isinstance(leaf, MultiRowKVCache):
                return leaf.take(indices, rows, width)
            return self._layout.joined([leaf.extract(index) for index in indices])

        layers = [map_leaves(selected, layer) for layer in self.layers]
        evaluate(layers)
        return BatchCache(layers, rows, self._layout)

    def remove(self, indices: Iterable[int]) -> list[int]:
        """Drop rows; the last rows move into their slots.

        Returns:
            The old indices of the rows that stay, in their new order.
        """
        order = _order_without(len(self.rows), set(indices))
        targets = [index for index, source in enumerate(order) if source != index]
        if targets and self.rows.longest:  # MLX divides by the width of what is written
            sources = [order[index] for index in targets]
            copies = [leaf.copies(sources) for leaf in self._growing]
            mx.async_eval(
                copies
            )  # before the writes: MLX writes in place only without other readers
            for leaf, copy in zip(self._growing, copies, strict=True):
                leaf.put(targets, copy)
        if order:
            for leaf in self._others:
                leaf.filter(order)
        self.rows.set([self.rows.lengths[index] for index in order])
        return order


def _row_cache(layout: CacheLayout) -> type[MultiRowKVCache]:
    if not layout.allows_batching:
        return UnbatchedKVCache
    return GroupedMaskKVCache if layout.groups_heads else MultiRowKVCache


def _order_without(count: int, gone: set[int]) -> list[int]:
    """Return the rows that stay, each at its index if possible, the last ones at free indices."""
    staying = count - len(gone)
    order = list(range(staying))
    movers = [index for index in range(staying, count) if index not in gone]
    for hole, mover in zip(sorted(gone & set(order)), movers, strict=True):
        order[hole] = mover
    return order
