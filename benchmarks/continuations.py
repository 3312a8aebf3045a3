"""How a text goes on from a cache. Import it only once the BLAS is loaded."""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import trim_prompt_cache

from worker.engine.caches import Cache


def greedy(network: Any, cache: Cache, last: int, count: int) -> list[int]:
    """The likeliest tokens after `last`, one by one; the cache is left as it was."""
    ids = [last]
    for _ in range(count):
        logits = network(mx.array([[ids[-1]]]), cache=cache)
        ids += cast(list[int], mx.argmax(logits[0, -1:], axis=-1).tolist())
    trim_prompt_cache(cache, count)
    return ids[1:]


def log_probabilities(network: Any, cache: Cache, ids: Sequence[int]) -> Any:
    """[T, V] of what may come after each of the tokens, in float64; the cache is left as it was."""
    logits = network(mx.array([list(ids)]), cache=cache)[0]
    logits = np.array(logits.astype(mx.float32)).astype(np.float64)
    trim_prompt_cache(cache, len(ids))
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def divergences(true: Any, other: Any) -> list[float]:
    """Kullback-Leibler divergence of each distribution of log probabilities from another one, in
    nats."""
    divergence: list[float] = (np.exp(true) * (true - other)).sum(axis=-1).tolist()
    return divergence
