"""The KV cache of one layer for rows that decode together, each at its own position.

mlx-lm's `BatchKVCache` aligns rows at their ends: a join or leave copies all rows, and the left
padding stays until the longest row leaves. Here each row starts at column 0 of its own slot: a join
writes one row, a leave moves the last row into the free slot, and columns beyond a row's length are
masked. Rows of equal length need neither a mask nor a scatter index, which saves a tenth of a small
model's step. Has the interface of mlx-lm's caches for steps of one token.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

BLOCK_TOKENS = 256
"""Caches grow by this many tokens, as mlx-lm's do."""


class RowLengths:
    """The lengths of the rows of a batch; one object for all layers.

    Attributes:
        lengths: tokens per row, before the current step.
        even: whether all rows have the same length.
        offsets: [B] `lengths` on the device: the positions of the next tokens.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.set(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    def set(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.even = len(set(self.lengths)) == 1
        self.offsets = mx.array(self.lengths, dtype=mx.int32)
        self._flat_indices: dict[tuple[int, int], mx.array] = {}

    def advance(self) -> None:
        """Add one token to every row."""
        self.set([length + 1 for length in self.lengths])

    def flat_indices(self, heads: int, width: int) -> mx.array:
        """Return [B * heads] the indices of the next token of each row and head in an array of
        [slots * heads * width] tokens."""
        key = heads, width
        if key not in self._flat_indices:
            starts = mx.arange(len(self.lengths) * heads).reshape(-1, heads) * width
            self._flat_indices[key] = (starts + self.offsets[:, None]).reshape(-1)
        return self._flat_indices[key]


class MultiRowKVCache:
    """Keys and values of one layer.

    Attributes:
        keys, values: [slots, heads, width, dim]; the first `len(rows)` slots are used. Layers that
            store nothing have 0 heads; layers that store only keys have values of size 0.
    """

    def __init__(self, rows: RowLengths, keys: mx.array, values: mx.array) -> None:
        self._rows = rows
        self.keys = keys
        self.values = values

    @classmethod
    def of(cls, cache: KVCache, rows: RowLengths) -> "MultiRowKVCache":
        """Take over the arrays of a prefilled cache, without a copy."""
        return cls(rows, cache.keys, cache.values)

    # Called by models.

    @property
    def offset(self) -> mx.array | int:
        return self._rows.offsets

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write one token of every row, [B, heads, 1, dim] each; return all keys and values."""
        if self._rows.even:
            count, at = len(self._rows), self._rows.longest
            self.keys[:count, :, at : at + 1] = keys
            self.values[:count, :, at : at + 1] = values
        else:
            indices = self._rows.flat_indices(self.keys.shape[1], self.width)
            self.keys = _written(self.keys, indices, keys)
            self.values = _written(self.values, indices, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        count, width = len(self._rows), self._rows.longest + 1
        return self.keys[:count, :, :width], self.values[:count, :, :width]

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """Return the mask [B, 1, 1, width]; None if every row may attend to everything."""
        longest = self._rows.longest
        if self._rows.even and (window_size is None or longest < window_size):
            return None
        columns = mx.arange(longest + 1)
        last = self._rows.offsets[:, None]
        mask = columns <= last
        if window_size is not None:
            mask = mask & (columns > last - window_size)
        return mask[:, None, None, :]

    # Called by the engine.

    @property
    def state(self) -> tuple[mx.array, mx.array]:
        return self.keys, self.values

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def slots(self) -> int:
        return int(self.keys.shape[0])

    @property
    def width(self) -> int:
        return int(self.keys.shape[2])

    def resize(self, slots: int, width: int) -> None:
        """Copy into arrays of another size; the first rows and columns are retained."""
        self.keys = _resized(self.keys, slots, width)
        self.values = _resized(self.values, slots, width)

    def copies(self, slots: Sequence[int]) -> tuple[mx.array, mx.array]:
        """Return keys and values of some slots, without unused columns."""
        chosen, width = mx.array(list(slots)), self._rows.longest
        return self.keys[chosen, :, :width], self.values[chosen, :, :width]

    def put(self, slots: Sequence[int], copies: tuple[mx.array, mx.array]) -> None:
        """Write the result of `copies` into other slots."""
        chosen, width = mx.array(list(slots)), copies[0].shape[2]
        for array, copy in zip((self.keys, self.values), copies, strict=True):
            if copy.size:  # MLX divides by the size of the written array
                array[chosen, :, :width] = copy

    def write(self, other: "MultiRowKVCache", first: int, length: int) -> None:
        """Copy all rows of another cache into the slots from `first` on."""
        end = first + len(other._rows)
        count = len(other._rows)
        self.keys[first:end, :, :length] = other.keys[:count, :, :length]
        self.values[first:end, :, :length] = other.values[:count, :, :length]

    def take(self, slots: Sequence[int], rows: RowLengths, width: int) -> "MultiRowKVCache":
        """Return a cache with copies of some slots."""
        chosen = mx.array(list(slots))
        return type(self)(
            rows,
            mx.contiguous(self.keys[chosen, :, :width]),
            mx.contiguous(self.values[chosen, :, :width]),
        )


class UnbatchedKVCache(MultiRowKVCache):
    """A cache of one row, for models that expect `offset` as a number."""

    @property
    def offset(self) -> int:
        (length,) = self._rows.lengths
        return length


class GroupedMaskKVCache(MultiRowKVCache):
    """For models that mask scores [B, KV heads, heads of a group, 1, width]."""

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        mask = super().make_mask(N, return_array, window_size)
        return None if mask is None else mask[:, None]


def _written(array: mx.array, indices: mx.array, tokens: mx.array) -> mx.array:
    """Write tokens [B, heads, 1, dim] into [slots, heads, width, dim] at flat indices. On a CPU one
    flat index takes a third of the time of separate indices of slot and column."""
    if not array.size:
        return array
    flat = array.reshape(-1, array.shape[-1])
    flat[indices] = tokens.reshape(-1, array.shape[-1])
    return flat.reshape(array.shape)


def _resized(array: mx.array, slots: int, width: int) -> mx.array:
    array = array[:slots, :, :width]
    more_slots, more_width = slots - array.shape[0], width - array.shape[2]
    if more_slots or more_width:
        padding: Any = [(0, more_slots), (0, 0), (0, more_width), (0, 0)]
        return mx.pad(array, padding)
    return mx.contiguous(array)
