"""Opaque caches: layer caches that mlx-lm cannot batch. They serve one row and are stored whole.

Only the model knows how such a class (DeepSeek V4.1's `LayerCache`) uses its arrays. The engine
does not convert it; a copy is a new object with the same attributes. The copies can share MLX
arrays: MLX copies an array on write.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from worker.engine.row_cache import MultiRowKVCache

_Plain = bool | int | float | str | None


def is_opaque(leaf: Any) -> bool:
    """Whether a cache is of such a class."""
    return not (hasattr(leaf, "merge") or isinstance(leaf, MultiRowKVCache))


def arrays_of(leaf: Any) -> list[mx.array]:
    """Return all arrays of an opaque cache."""
    return [each for each in _atoms(list(vars(leaf).values())) if isinstance(each, mx.array)]


def is_copyable(leaf: Any) -> bool:
    """Whether an opaque cache holds only arrays and immutable plain values."""
    atoms = _atoms(list(vars(leaf).values()))
    return all(isinstance(each, mx.array | _Plain) for each in atoms)


def attributes_of(leaf: Any) -> list[list[Any]]:
    """Return the name and value of each attribute."""
    return [list(pair) for pair in vars(leaf).items()]


def set_attributes(empty: Any, attributes: list[list[Any]]) -> Any:
    """Set the attributes of a new cache of the same class; return the cache."""
    vars(empty).update(attributes)
    return empty


def _atoms(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list | tuple):
        for each in tree:
            yield from _atoms(each)
    else:
        yield tree
