"""Copies pieces of rows into one array: with MLX on a GPU, with numpy on a CPU, where MLX's copies
of non-contiguous arrays run at a sixth of the memory bandwidth."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from worker.engine.device import on_gpu

_TO_NUMPY = {
    mx.float32: np.dtype(np.float32), mx.float16: np.dtype(np.float16),
    mx.bfloat16: np.dtype(np.uint16), mx.uint32: np.dtype(np.uint32),
    mx.int32: np.dtype(np.int32), mx.int64: np.dtype(np.int64), mx.uint8: np.dtype(np.uint8),
    mx.bool_: np.dtype(np.bool_),
}  # fmt: skip
_TO_MLX = {numpy: dtype for dtype, numpy in _TO_NUMPY.items()}

Piece = Any
"""An MLX array on a GPU, else a numpy array; bfloat16 is held as uint16 bits in numpy."""


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """A plan of an array [rows, heads, width, dim]: each row is its pieces [1, heads, tokens, dim]
    in sequence, padded with zeros."""

    rows: Sequence[Sequence[Piece]]
    shape: tuple[int, int, int, int]
    dtype: mx.Dtype


def piece(array: mx.array, row: int, start: int, end: int) -> Piece:
    """Copy [1, heads, end - start, dim] from a row of [rows, heads, tokens, dim]; on a GPU the copy
    is not evaluated yet."""
    if on_gpu():
        return mx.contiguous(array[row : row + 1, :, start:end])
    return np.array(numpy_view(array)[row : row + 1, :, start:end], order="C")


class ArrayGatherer:
    """Belongs to the engine thread."""

    def __init__(self) -> None:
        self._scratch: Any = None

    def gather(self, plans: Sequence[GatherPlan], tokens: int) -> Iterator[mx.array]:
        """Yield the array of each plan, with the first `tokens` tokens of each row."""
        return self._on_device(plans, tokens) if on_gpu() else self._on_host(plans, tokens)

    def _on_device(self, plans: Sequence[GatherPlan], tokens: int) -> Iterator[mx.array]:
        for each in plans:
            _, heads, width, dim = each.shape
            rest = mx.zeros((1, heads, width - tokens, dim), each.dtype)
            rows = []
            for pieces in each.rows:
                left, used = tokens, []
                for part in pieces:
                    used.append(part[:, :, :left])
                    left -= used[-1].shape[2]
                rows.append(mx.concatenate([*used, rest], axis=2))
            yield mx.concatenate(rows) if len(rows) > 1 else rows[0]

    def _on_host(self, plans: Sequence[GatherPlan], tokens: int) -> Iterator[mx.array]:
        """The scratch buffer is small enough to stay in the CPU cache until MLX copies it."""
        for each in plans:
            yield as_mlx(self._filled(each, tokens), each.dtype)

    def _filled(self, plan: GatherPlan, tokens: int) -> Any:
        kind = numpy_dtype(plan.dtype)
        if self._scratch is None or self._scratch.dtype != kind:
            self._scratch = np.empty(0, kind)
        size = math.prod(plan.shape)
        if self._scratch.size < size:
            self._scratch = np.empty(size, kind)
        filled = self._scratch[:size].reshape(plan.shape)
        for row, pieces in enumerate(plan.rows):
            at = 0
            for part in pieces:
                end = min(tokens, at + part.shape[2])
                filled[row, :, at:end] = part[0, :, : end - at]
                at = end
            filled[row, :, at:] = 0
        return filled


def numpy_view(array: mx.array) -> Any:
    """Return a numpy view of an array, without a copy; waits until the array is computed."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, copy=False)


def as_mlx(part: Piece, dtype: mx.Dtype) -> mx.array:
    """Convert a piece to an MLX array."""
    if isinstance(part, mx.array):
        return part
    array = mx.array(part)
    return array if array.dtype == dtype else array.view(dtype)


def as_piece(array: mx.array) -> Piece:
    return array if on_gpu() else numpy_view(array)


def dtype_of(part: Piece) -> mx.Dtype:
    return part.dtype if isinstance(part, mx.array) else _TO_MLX[part.dtype]


def numpy_dtype(dtype: mx.Dtype) -> Any:
    """Return the numpy dtype that holds the bits."""
    return _TO_NUMPY[dtype]
