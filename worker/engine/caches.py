"""KV caches of one sequence and of many: the one module that touches mlx-lm's cache classes.

A cache is a list with one entry a layer. What a batch does to its rows (join, leave) is done
to each entry; a batch cache is padded on the left to its longest row.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from shared.errors import ModelError

Cache = list[Any]


def new_cache(network: Any) -> Cache:
    """An empty cache for one sequence."""
    return list(make_prompt_cache(network))


def new_batch_cache(network: Any, rows: int) -> Cache:
    """An empty cache for some sequences that grow together."""
    return merge([new_cache(network) for _ in range(rows)])


def merge(caches: Sequence[Cache]) -> Cache:
    """One batch cache of caches of one sequence each; copies them."""
    return [layers[0].merge(list(layers)) for layers in zip(*caches, strict=True)]


def join(cache: Cache, other: Cache) -> Cache:
    """The rows of two batch caches, as one; copies both."""
    if not cache:
        return other
    for mine, theirs in zip(cache, other, strict=True):
        mine.extend(theirs)
    return cache


def keep_rows(cache: Cache, rows: Sequence[int]) -> Cache:
    """Only some rows of a batch cache; copies them."""
    if not rows:
        return []
    for layer in cache:
        layer.filter(list(rows))
    return cache


def evaluate(cache: Cache) -> None:
    """Wait until everything that was put into it is computed."""
    mx.eval([layer.state for layer in cache])


def require_batching(network: Any) -> None:
    """Raises ModelError for a model whose layers cannot be batched."""
    for layer in new_cache(network):
        if not hasattr(layer, "merge"):
            raise ModelError(f"a cache of the kind {type(layer).__name__} cannot be batched")
