"""Between the caches of rows and what is kept of them: the only place that knows both.

Keys and values of layers that grow with the text are cut into blocks; of all other layers (sliding
windows, chunks, recurrent, convolutions, and what only its model can read) the whole state at a
token is kept.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, RotatingKVCache

from worker.engine.caches import (
    Cache,
    CacheLayout,
    blocks_for,
    empty_cache,
    leaves,
    map_leaves,
)
from worker.engine.device import on_gpu
from worker.engine.gather import (
    Gatherer,
    GatherPlan,
    Piece,
    as_mlx,
    as_piece,
    dtype_of,
    numbers,
    numpy_dtype,
    piece,
)
from worker.engine.opaque_cache import content_of, fill, is_whole
from worker.engine.row_cache import RowKVCache
from worker.kv_memory.block import Kind
from worker.kv_memory.block_file import BlockContent, Tensor

_DTYPES = {
    "F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16, "U32": mx.uint32, "I32": mx.int32,
    "U8": mx.uint8, "BOOL": mx.bool_, "I64": mx.int64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_GROUP_SIZES = (64, 32)
"""Of numbers that share a scale when they are kept in 8 bits."""
_BITS = 8


@dataclass(frozen=True, slots=True)
class Arrays:
    """What is kept of a block; `notes` say how the arrays of a state are put together."""

    arrays: Sequence[Piece]
    notes: str = ""
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(array.nbytes for array in self.arrays))

    @property
    def unevaluated(self) -> list[mx.array]:
        """Those that the device may still have to compute."""
        return [array for array in self.arrays if isinstance(array, mx.array)]


@dataclass(frozen=True, slots=True)
class RowStart:
    """With what a row begins: the blocks of its first tokens, and the state after them."""

    blocks: Sequence[Arrays] = ()
    state: Arrays | None = None


class BlockCodec:
    """Cuts, keeps and puts together what is kept of one model. Belongs to the engine thread.

    Args:
        bits: keep keys and values in so many bits; None for as they are.
    """

    def __init__(self, layout: CacheLayout, bits: int | None = None) -> None:
        self._layout = layout
        shapes = [shape for pair in layout.shapes for shape in pair]
        self._groups = [_group_size(dim) if bits is not None else None for _, dim, _ in shapes]
        """Of each array of keys or values the size of its groups; None for as it is."""
        counts = [1 if group is None else 3 for group in self._groups]
        self._places = [sum(counts[:number]) for number in range(len(counts))]
        self._gatherer = Gatherer()

    # From caches.

    def cut(self, cache: Iterable[Any], row: int, start: int, end: int) -> Arrays:
        """Keys and values of some tokens of a row; on a GPU not evaluated yet."""
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
        return Arrays(cut)

    def snapshot(self, cache: Iterable[Any], row: int) -> Arrays:
        """The state of a row in all layers that cannot be cut; not evaluated."""
        arrays: list[mx.array] = []
        skeletons = [
            _flatten(_state_of(leaf, row), arrays) for leaf in leaves(cache) if not _grows(leaf)
        ]
        return Arrays(arrays, json.dumps(skeletons, separators=(",", ":")))

    # Into caches.

    def restored(self, starts: Sequence[RowStart], done: int, tokens: int) -> Cache:
        """The cache of rows of which the first `done` tokens are there, with room for `tokens` of
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

    def _gathers(self, starts: Sequence[RowStart], room: int) -> Iterator[GatherPlan]:
        shapes = [shape for pair in self._layout.shapes for shape in pair]
        for number, (heads, dim, dtype) in enumerate(shapes):
            rows = [
                [self._kept(block, number, dtype) for block in start.blocks] for start in starts
            ]
            yield GatherPlan(rows, (len(rows), heads, room, dim), dtype)

    def _kept(self, block: Arrays, number: int, dtype: mx.Dtype) -> Piece:
        place, group = self._places[number], self._groups[number]
        if group is None:
            return block.arrays[place]
        packed, scales, biases = block.arrays[place : place + 3]
        restored = mx.dequantize(packed, scales, biases, group_size=group, bits=_BITS)
        return as_piece(restored.astype(dtype))

    def _states(self, starts: Sequence[RowStart]) -> list[list[Any]]:
        """For each layer with a state the caches of all rows."""
        rows = [self._state(start.state) for start in starts]
        return [list(layer) for layer in zip(*rows, strict=True)]

    def _state(self, kept: Arrays | None) -> list[Any]:
        if kept is None:
            return []
        states = [_unflatten(skeleton, kept.arrays) for skeleton in json.loads(kept.notes)]
        kinds = [leaf for leaf in leaves(empty_cache(self._layout.network)) if not _grows(leaf)]
        return [_with_state(leaf, state) for leaf, state in zip(kinds, states, strict=True)]

    # Files.

    def content(self, kept: Arrays) -> BlockContent:
        """As it goes into a file; shares the memory of the arrays."""
        mx.eval(kept.unevaluated)
        return BlockContent(
            [
                Tensor(str(number), _NAMES[dtype_of(array)], tuple(array.shape), _view(array))
                for number, array in enumerate(kept.arrays)
            ],
            kept.notes,
        )

    def arrays(self, content: BlockContent, kind: Kind) -> Arrays:
        """From a file.

        Raises:
            ValueError: it does not hold what it should.
        """
        try:
            parts = [_numbers_of(tensor) for tensor in content.tensors]
            if kind == "state" or any(self._groups) or on_gpu():
                dtypes = [_DTYPES[tensor.dtype] for tensor in content.tensors]
                parts = list(map(as_mlx, parts, dtypes))
            return Arrays(parts, content.notes)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"unexpected content: {error}") from error


def _grows(leaf: Any) -> bool:
    return type(leaf) is KVCache or isinstance(leaf, RowKVCache)


def _group_size(dim: int) -> int | None:
    if dim == 0:
        return None
    return next((size for size in _GROUP_SIZES if dim % size == 0), None)


def _state_of(leaf: Any, row: int) -> Any:
    return content_of(leaf) if is_whole(leaf) else _single(leaf, row).state


def _with_state(empty: Any, state: Any) -> Any:
    """A cache of the class of an empty one, that goes on from such a state."""
    return fill(empty, state) if is_whole(empty) else type(empty).from_state(state)


def _single(leaf: Any, row: int) -> Any:
    """The cache of one row alone, without what is not looked at any more."""
    single = leaf.extract(row) if hasattr(leaf, "extract") else copy(leaf)
    if isinstance(single, RotatingKVCache) and single.keys.shape[2] > single.max_size:
        single.keys = mx.contiguous(single.keys[:, :, -single.max_size :])
        single.values = mx.contiguous(single.values[:, :, -single.max_size :])
        single._idx = single.max_size
    return single


def _flatten(tree: Any, arrays: list[mx.array]) -> Any:
    """JSON with a number in a list for each array, which goes into `arrays`."""
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
    raw = numbers(array) if isinstance(array, mx.array) else array
    return raw.reshape(-1).data.cast("B") if raw.size else memoryview(b"")


def _numbers_of(tensor: Tensor) -> Any:
    kind = numpy_dtype(_DTYPES[tensor.dtype])
    return np.frombuffer(tensor.data, dtype=kind).reshape(tensor.shape)
