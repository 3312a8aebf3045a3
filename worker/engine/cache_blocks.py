"""Converts between the KV caches of rows and the blocks of KV memory.

Keys and values of layers that grow with the sequence are cut into blocks. Of all other layers
(sliding windows, chunks, recurrent and convolution states, opaque caches) the whole state at a
token is stored.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, RotatingKVCache

from worker.engine.array_gatherer import (
    ArrayGatherer,
    GatherPlan,
    Piece,
    as_mlx,
    as_piece,
    dtype_of,
    numpy_dtype,
    numpy_view,
    piece,
)
from worker.engine.caches import (
    Cache,
    CacheLayout,
    blocks_for,
    empty_cache,
    leaves,
    map_leaves,
)
from worker.engine.device import on_gpu
from worker.engine.opaque_cache import attributes_of, is_opaque, set_attributes
from worker.engine.row_cache import MultiRowKVCache
from worker.kv_memory.block import Kind
from worker.kv_memory.block_file import BlockContent, Tensor

_DTYPES = {
    "F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16, "U32": mx.uint32, "I32": mx.int32,
    "U8": mx.uint8, "BOOL": mx.bool_, "I64": mx.int64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_GROUP_SIZES = (64, 32)
"""Quantisation group sizes for keys and values stored in 8 bits, in order of preference."""
_BITS = 8


@dataclass(frozen=True, slots=True)
class BlockArrays:
    """The stored arrays of a block; `notes` is JSON that describes the structure of a state."""

    arrays: Sequence[Piece]
    notes: str = ""
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(array.nbytes for array in self.arrays))

    @property
    def unevaluated(self) -> list[mx.array]:
        """The MLX arrays, which the device may still have to compute."""
        return [array for array in self.arrays if isinstance(array, mx.array)]


@dataclass(frozen=True, slots=True)
class RowPrefix:
    """The cached beginning of a row: the blocks of its first tokens, and the state after them."""

    blocks: Sequence[BlockArrays] = ()
    state: BlockArrays | None = None


class BlockCodec:
    """Encodes and decodes the blocks of one model. Belongs to the engine thread.

    Args:
        bits: bits per stored key and value; None stores them unchanged.
    """

    def __init__(self, layout: CacheLayout, bits: int | None = None) -> None:
        self._layout = layout
        shapes = [shape for pair in layout.shapes for shape in pair]
        self._groups = [_group_size(dim) if bits is not None else None for _, dim, _ in shapes]
        """The quantisation group size of each array of keys or values; None if not quantised."""
        counts = [1 if group is None else 3 for group in self._groups]
        self._offsets = [sum(counts[:number]) for number in range(len(counts))]
        self._gatherer = ArrayGatherer()

    # From caches.

    def cut(self, cache: Iterable[Any], row: int, start: int, end: int) -> BlockArrays:
        """Copy keys and values of some tokens of a row; on a GPU they are not evaluated yet."""
        cut: list[Piece] = []
        groups = iter(self._groups)
        for leaf in leaves(cache):
            if not _grows(leaf):
                continue
            for array in (leaf.keys, leaf.values):
                part = piece(array, row, start, end)
                group = next(groups)
                if group is None:
                    cut.append(part)
                else:
                    part = as_mlx(part, array.dtype)
                    cut.extend(mx.quantize(part, group_size=group, bits=_BITS))
        return BlockArrays(cut)

    def snapshot(self, cache: Iterable[Any], row: int) -> BlockArrays:
        """Copy the state of a row in all layers that cannot be cut into blocks; not evaluated."""
        arrays: list[mx.array] = []
        skeletons = [
            _flatten(_state_of(leaf, row), arrays) for leaf in leaves(cache) if not _grows(leaf)
        ]
        return BlockArrays(arrays, json.dumps(skeletons, separators=(",", ":")))

    # Into caches.

    def restored(self, starts: Sequence[RowPrefix], done: int, tokens: int) -> Cache:
        """Build the cache of rows that have their first `done` tokens, with capacity for `tokens`
        each."""
        states = iter(self._states(starts))
        arrays = self._gatherer.gather(list(self._gathers(starts, blocks_for(tokens))), done)

        def new_leaf(first: Any) -> Any:
            if type(first) is not KVCache:
                return self._layout.joined(next(states))
            first.keys, first.values = next(arrays), next(arrays)
            first.offset = done
            return first

        return [map_leaves(new_leaf, layer) for layer in empty_cache(self._layout.network)]

    def _gathers(self, starts: Sequence[RowPrefix], width: int) -> Iterator[GatherPlan]:
        shapes = [shape for pair in self._layout.shapes for shape in pair]
        for number, (heads, dim, dtype) in enumerate(shapes):
            rows = [
                [self._decoded(block, number, dtype) for block in start.blocks] for start in starts
            ]
            yield GatherPlan(rows, (len(rows), heads, width, dim), dtype)

    def _decoded(self, block: BlockArrays, number: int, dtype: mx.Dtype) -> Piece:
        offset, group = self._offsets[number], self._groups[number]
        if group is None:
            return block.arrays[offset]
        packed, scales, biases = block.arrays[offset : offset + 3]
        restored = mx.dequantize(packed, scales, biases, group_size=group, bits=_BITS)
        return as_piece(restored.astype(dtype))

    def _states(self, starts: Sequence[RowPrefix]) -> list[list[Any]]:
        """Return the caches of all rows for each layer with a state."""
        rows = [self._state(start.state) for start in starts]
        return [list(layer) for layer in zip(*rows, strict=True)]

    def _state(self, stored: BlockArrays | None) -> list[Any]:
        if stored is None:
            return []
        states = [_unflatten(skeleton, stored.arrays) for skeleton in json.loads(stored.notes)]
        kinds = [leaf for leaf in leaves(empty_cache(self._layout.network)) if not _grows(leaf)]
        return [_with_state(leaf, state) for leaf, state in zip(kinds, states, strict=True)]

    # Files.

    def content(self, stored: BlockArrays) -> BlockContent:
        """Return the content of a block's file; shares the memory of the arrays."""
        mx.eval(stored.unevaluated)
        return BlockContent(
            [
                Tensor(str(number), _NAMES[dtype_of(array)], tuple(array.shape), _view(array))
                for number, array in enumerate(stored.arrays)
            ],
            stored.notes,
        )

    def arrays(self, content: BlockContent, kind: Kind) -> BlockArrays:
        """Return the arrays of a block's file.

        Raises:
            ValueError: the content is invalid.
        """
        try:
            parts = [_array_of(tensor) for tensor in content.tensors]
            if kind == "state" or any(self._groups) or on_gpu():
                dtypes = [_DTYPES[tensor.dtype] for tensor in content.tensors]
                parts = list(map(as_mlx, parts, dtypes))
            return BlockArrays(parts, content.notes)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"unexpected content: {error}") from error


def _grows(leaf: Any) -> bool:
    return type(leaf) is KVCache or isinstance(leaf, MultiRowKVCache)


def _group_size(dim: int) -> int | None:
    if dim == 0:
        return None
    return next((size for size in _GROUP_SIZES if dim % size == 0), None)


def _state_of(leaf: Any, row: int) -> Any:
    return attributes_of(leaf) if is_opaque(leaf) else _single(leaf, row).state


def _with_state(empty: Any, state: Any) -> Any:
    """Return a cache of the class of an empty one, with this state."""
    return set_attributes(empty, state) if is_opaque(empty) else type(empty).from_state(state)


def _single(leaf: Any, row: int) -> Any:
    """Return the cache of one row alone, without tokens that left its sliding window."""
    single = leaf.extract(row) if hasattr(leaf, "extract") else copy(leaf)
    if isinstance(single, RotatingKVCache) and single.keys.shape[2] > single.max_size:
        single.keys = mx.contiguous(single.keys[:, :, -single.max_size :])
        single.values = mx.contiguous(single.values[:, :, -single.max_size :])
        single._idx = single.max_size
    return single


def _flatten(tree: Any, arrays: list[mx.array]) -> Any:
    """Return a tree for JSON with indices in place of arrays; appends the arrays to `arrays`."""
    if isinstance(tree, mx.array):
        arrays.append(mx.contiguous(tree))
        return {"array": len(arrays) - 1}
    if isinstance(tree, list | tuple):
        return [_flatten(each, arrays) for each in tree]
    return tree


def _unflatten(tree: Any, arrays: Sequence[mx.array]) -> Any:
    if isinstance(tree, dict):
        return arrays[tree["array"]]
    if isinstance(tree, list):
        return [_unflatten(each, arrays) for each in tree]
    return tree


def _view(array: Piece) -> memoryview:
    raw = numpy_view(array) if isinstance(array, mx.array) else array
    return raw.reshape(-1).data.cast("B") if raw.size else memoryview(b"")


def _array_of(tensor: Tensor) -> Any:
    kind = numpy_dtype(_DTYPES[tensor.dtype])
    return np.frombuffer(tensor.data, dtype=kind).reshape(tensor.shape)
