"""The allowed tokens of the constrained rows of a batch, applied in one operation."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from worker.answer.constraint import AnswerMatcher, Bitmask
from worker.engine.penalties import put, take

_WORD = 32


class TokenMask:
    """The mask of N rows of a batch.

    Args:
        rows: their indices in the batch.
        bitmask: [N, W] one bit per token, set if it is allowed; tokens beyond its end are not.
    """

    def __init__(self, rows: Sequence[int], bitmask: Bitmask) -> None:
        self._rows = list(rows)
        self._bitmask = mx.array(bitmask.view(np.uint32))

    def apply(self, logits: mx.array) -> mx.array:
        """Return the logits [B, V], with minus infinity for tokens that are not allowed."""
        rows, vocabulary = len(self._rows), logits.shape[-1]
        bits = (self._bitmask[:, :, None] >> mx.arange(_WORD, dtype=mx.uint32)) & 1
        allowed = bits.reshape(rows, -1)[:, :vocabulary] != 0
        if (missing := vocabulary - allowed.shape[-1]) > 0:
            allowed = mx.pad(allowed, [(0, 0), (0, missing)])
        masked = mx.where(allowed, take(logits, self._rows), -mx.inf)
        return put(logits, self._rows, masked.astype(logits.dtype))


def mask_of(constraints: Sequence[AnswerMatcher | None]) -> TokenMask | None:
    """Return the mask of rows with these constraints; None if every token is allowed."""
    masking = [
        (index, each)
        for index, each in enumerate(constraints)
        if each is not None and each.restricts
    ]
    if not masking:
        return None
    bitmask = np.zeros((len(masking), masking[0][1].mask_words), dtype=np.int32)
    for row, (_, constraint) in enumerate(masking):
        constraint.write_mask(bitmask, row)
    return TokenMask([index for index, _ in masking], bitmask)
