"""Rows of tokens as arrays: padded on the right to one length."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """
    Attributes:
        ids: (rows, length), int32; padding has the padding id.
        lengths: (rows,), int32: the tokens of each row.
        token_types: (rows, length), int32: 1 for the tokens of a pair's second text, else 0; None
            if all are 0.
        is_padded: whether any row is shorter than `length`.
    """

    ids: mx.array
    lengths: mx.array
    token_types: mx.array | None
    is_padded: bool

    @property
    def length(self) -> int:
        return int(self.ids.shape[1])

    @property
    def valid(self) -> mx.array:
        """Whether a position holds a token of its row: (rows, length), bool."""
        return mx.arange(self.length)[None] < self.lengths[:, None]


def padded_batch(
    rows: Sequence[Sequence[int]],
    padding_id: int,
    *,
    vocabulary_size: int,
    max_length: int,
    second_from: Sequence[int] | None = None,
) -> TokenBatch:
    """Pad rows on the right.

    Args:
        rows: at least one, each of 1 to `max_length` tokens.
        second_from: for each row the position from which on token types are 1.

    Raises:
        ValueError: there is no row, a row is empty or too long, or a token is outside the
            vocabulary: MLX would read memory beyond a table of the network.
    """
    if not rows:
        raise ValueError("the batch has no rows")
    lengths = [len(row) for row in rows]
    for length in (min(lengths), max(lengths)):
        if not 1 <= length <= max_length:
            raise ValueError(f"a row has {length} tokens; 1 to {max_length} are possible")
    ids = np.full((len(rows), max(lengths)), padding_id, dtype=np.int64)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ValueError(f"a token is outside the vocabulary of {vocabulary_size} tokens")
    types = None
    if second_from is not None:
        begins = np.asarray(second_from)[:, None]
        types = mx.array((np.arange(ids.shape[1])[None] >= begins).astype(np.int32))
    return TokenBatch(
        ids=mx.array(ids.astype(np.int32)),
        lengths=mx.array(np.asarray(lengths, dtype=np.int32)),
        token_types=types,
        is_padded=min(lengths) < max(lengths),
    )
