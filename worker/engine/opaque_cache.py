"""The cache of a layer of which mlx-lm can make no batch: it serves one row, and is kept whole.

What such a class (DeepSeek V4.1's `LayerCache`) does with its arrays only its model knows. So it
stays as it is, and a copy of it is a new one with the same attributes. MLX's arrays can be shared:
who writes to one gets an array of its own.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from worker.engine.row_cache import RowKVCache

_Plain = bool | int | float | str | None


def is_whole(leaf: Any) -> bool:
    """Whether a cache is of such a class."""
    return not (hasattr(leaf, "merge") or isinstance(leaf, RowKVCache))


def arrays_of(leaf: Any) -> list[mx.array]:
    """All that it holds."""
    return [each for each in _atoms(list(vars(leaf).values())) if isinstance(each, mx.array)]


def can_be_copied(leaf: Any) -> bool:
    """Whether it holds arrays and plain values, and nothing that is changed in its place."""
    atoms = _atoms(list(vars(leaf).values()))
    return all(isinstance(each, mx.array | _Plain) for each in atoms)


def content_of(leaf: Any) -> list[list[Any]]:
    """Its attributes: name and value of each."""
    return [list(pair) for pair in vars(leaf).items()]


def fill(empty: Any, content: list[list[Any]]) -> Any:
    """Give a new cache of the same class the attributes of another one."""
    vars(empty).update(content)
    return empty


def _atoms(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list | tuple):
        for each in tree:
            yield from _atoms(each)
    else:
        yield tree
