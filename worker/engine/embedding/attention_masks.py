"""Masks of attention to both sides: boolean, True where a query may see a key."""

import mlx.core as mx

from worker.engine.embedding.token_batch import TokenBatch


def padding_mask(batch: TokenBatch) -> mx.array | None:
    """Hide padding: (rows, 1, 1, length); None if there is none."""
    return batch.valid[:, None, None, :] if batch.is_padded else None


def window_mask(batch: TokenBatch, reach: int) -> mx.array | None:
    """Hide padding, and keys that are more than `reach` positions away: (rows or 1, 1, length,
    length), one byte each. Each position sees itself, padding too: a query without keys would be
    NaN, and make NaN of its row through the values of the next layer."""
    if batch.length <= reach + 1:
        return padding_mask(batch)
    positions = mx.arange(batch.length)
    distance = mx.abs(positions[:, None] - positions[None])
    near = (distance <= reach)[None, None]
    valid = padding_mask(batch)
    return near if valid is None else (near & valid) | (distance == 0)[None, None]
