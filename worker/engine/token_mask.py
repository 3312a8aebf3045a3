"""Which tokens the rows of a batch may get, applied to all of them in one operation."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from worker.answer.constraint import Bitmask, Constraint
from worker.engine.penalties import put, take

_WORD = 32


class TokenMask:
    """For N rows of a batch.

    Args:
        rows: their places.
        bitmask: [N, W] a bit for each token that is allowed; none is behind its end.
    """

    def __init__(self, rows: Sequence[int], bitmask: Bitmask) -> None:
        self._rows = list(rows)
        self._words = mx.array(bitmask.view(np.uint32))

    def apply(self, logits: mx.array) -> mx.array:
        """[B, V] logits, with minus infinity where a token is not allowed."""
        rows, vocabulary = len(self._rows), logits.shape[-1]
        bits = (self._words[:, :, None] >> mx.arange(_WORD, dtype=mx.uint32)) & 1
        allowed = bits.reshape(rows, -1)[:, :vocabulary] != 0
        if (missing := vocabulary - allowed.shape[-1]) > 0:
            allowed = mx.pad(allowed, [(0, 0), (0, missing)])
        masked = mx.where(allowed, take(logits, self._rows), -mx.inf)
        return put(logits, self._rows, masked.astype(logits.dtype))


def mask_of(constraints: Sequence[Constraint | None]) -> TokenMask | None:
    """The mask of rows with these constraints; None where every token is allowed."""
    masking = [
        (place, each) for place, each in enumerate(constraints) if each is not None and each.masks
    ]
    if not masking:
        return None
    bitmask = np.zeros((len(masking), masking[0][1].words), dtype=np.int32)
    for row, (_, constraint) in enumerate(masking):
        constraint.fill(bitmask, row)
    return TokenMask([place for place, _ in masking], bitmask)
