"""Pieces of rows copied side by side: on a GPU by MLX, else by numpy, because MLX's own copies of
what is not contiguous take six times as long as the memory allows on a CPU."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from worker.engine.device import on_gpu

_OF_MLX = {
    mx.float32: np.dtype(np.float32), mx.float16: np.dtype(np.float16),
    mx.bfloat16: np.dtype(np.uint16), mx.uint32: np.dtype(np.uint32),
    mx.int32: np.dtype(np.int32), mx.int64: np.dtype(np.int64), mx.uint8: np.dtype(np.uint8),
    mx.bool_: np.dtype(np.bool_),
}  # fmt: skip
_TO_MLX = {numpy: dtype for dtype, numpy in _OF_MLX.items()}

Piece = Any
"""An array of MLX on a GPU, else of numpy; of bfloat16 numpy has the bits."""


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """An array [rows, heads, room, dim]: of each row pieces [1, heads, tokens, dim] one behind the
    other, and zeros."""

    rows: Sequence[Sequence[Piece]]
    shape: tuple[int, int, int, int]
    dtype: mx.Dtype


def piece(array: mx.array, row: int, start: int, end: int) -> Piece:
    """[1, heads, end - start, dim] of a row of [rows, heads, tokens, dim], as a copy; on a GPU it
    is not evaluated yet."""
    if on_gpu():
        return mx.contiguous(array[row : row + 1, :, start:end])
    return np.array(numbers(array)[row : row + 1, :, start:end], order="C")


class Gatherer:
    """Belongs to the engine thread."""

    def __init__(self) -> None:
        self._scratch: Any = None

    def gather(self, gathers: Sequence[GatherPlan], tokens: int) -> Iterator[mx.array]:
        """The arrays, with the first so many tokens of each row."""
        return self._on_device(gathers, tokens) if on_gpu() else self._on_host(gathers, tokens)

    def _on_device(self, gathers: Sequence[GatherPlan], tokens: int) -> Iterator[mx.array]:
        for each in gathers:
            _, heads, room, dim = each.shape
            rest = mx.zeros((1, heads, room - tokens, dim), each.dtype)
            rows = []
            for pieces in each.rows:
                left, used = tokens, []
                for part in pieces:
                    used.append(part[:, :, :left])
                    left -= used[-1].shape[2]
                rows.append(mx.concatenate([*used, rest], axis=2))
            yield mx.concatenate(rows) if len(rows) > 1 else rows[0]

    def _on_host(self, gathers: Sequence[GatherPlan], tokens: int) -> Iterator[mx.array]:
        """What is filled is small enough to stay in the processor's cache until it is MLX's."""
        for each in gathers:
            yield as_mlx(self._fill(each, tokens), each.dtype)

    def _fill(self, gather: GatherPlan, tokens: int) -> Any:
        kind = numpy_dtype(gather.dtype)
        if self._scratch is None or self._scratch.dtype != kind:
            self._scratch = np.empty(0, kind)
        size = math.prod(gather.shape)
        if self._scratch.size < size:
            self._scratch = np.empty(size, kind)
        filled = self._scratch[:size].reshape(gather.shape)
        for row, pieces in enumerate(gather.rows):
            at = 0
            for part in pieces:
                end = min(tokens, at + part.shape[2])
                filled[row, :, at:end] = part[0, :, : end - at]
                at = end
            filled[row, :, at:] = 0
        return filled


def numbers(array: mx.array) -> Any:
    """A view of an array by numpy, without a copy; waits until it is computed."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, copy=False)


def as_mlx(part: Piece, dtype: mx.Dtype) -> mx.array:
    """A piece for MLX to compute with."""
    if isinstance(part, mx.array):
        return part
    array = mx.array(part)
    return array if array.dtype == dtype else array.view(dtype)


def as_piece(array: mx.array) -> Piece:
    return array if on_gpu() else numbers(array)


def dtype_of(part: Piece) -> mx.Dtype:
    return part.dtype if isinstance(part, mx.array) else _TO_MLX[part.dtype]


def numpy_dtype(dtype: mx.Dtype) -> Any:
    """In which numpy holds the bits."""
    return _OF_MLX[dtype]
