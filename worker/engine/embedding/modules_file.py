"""What follows the network: modules.json, and the folders of its modules.

The format is that of sentence-transformers (base/model.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import mlx.core as mx

from shared.errors import ModelError
from worker.engine.embedding.config_values import positive_int, values_of
from worker.engine.embedding.dense import Dense, load_dense
from worker.engine.embedding.pooling import Pooling
from worker.models.file_reading import opened, read_object

MODULES = "modules.json"
_MAX_BYTES = 1_000_000
_SMALLEST_NORM = 1e-12  # of torch.nn.functional.normalize
_SUPPORTED = ("Transformer", "Pooling", "Dense", "Normalize")


@dataclass(frozen=True, slots=True)
class Normalize:
    """Gives vectors the length 1."""

    def __call__(self, vectors: mx.array) -> mx.array:
        norms = mx.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors / mx.maximum(norms, _SMALLEST_NORM)


@dataclass(frozen=True, slots=True)
class EmbeddingModule:
    """An entry of modules.json: the last part of its type, and its folder."""

    kind: str
    folder: Path


@dataclass(frozen=True, slots=True)
class VectorSteps:
    """From hidden states to vectors.

    Attributes:
        dimensions: of the vectors.
    """

    pooling: Pooling
    steps: tuple[Dense | Normalize, ...]
    dimensions: int

    @property
    def normalizes(self) -> bool:
        """Whether vectors have the length 1."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)

    def __call__(self, pooled: mx.array) -> mx.array:
        """Return (rows, dimensions) of pooled states."""
        for step in self.steps:
            pooled = step(pooled)
        return pooled


def shortened(vectors: mx.array, dimensions: int, *, normalizes: bool) -> mx.array:
    """Cut vectors (Matryoshka, arXiv:2205.13147), and give them the length 1 again if they had it.

    Returns:
        (rows, dimensions).
    """
    cut = vectors[:, :dimensions]
    return Normalize()(cut) if normalizes else cut


def read_modules(folder: Path) -> list[EmbeddingModule] | None:
    """Return the modules of a model, of which the first is the network; None without modules.json.

    Raises:
        ModelError: the file is broken, or names a module that is not supported.
    """
    path = folder / MODULES
    if not path.exists():
        return None
    with opened(path) as (file, size_bytes):
        if size_bytes > _MAX_BYTES:
            raise ModelError(f"{path} has {size_bytes} bytes; the maximum is {_MAX_BYTES}")
        text = file.read(_MAX_BYTES)
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(entries, list):
        raise ModelError(f"{path} is not a list of modules")
    with values_of(path):
        modules = [_module(folder, entry) for entry in entries]
        if [module.kind for module in modules[:1]] != ["Transformer"]:
            raise ModelError("the first module is not a Transformer")
        if any(module.kind == "Transformer" for module in modules[1:]):
            raise ModelError("it has more than one Transformer, which is not supported")
    return modules


def _module(folder: Path, entry: Any) -> EmbeddingModule:
    match entry:
        case {"type": str(name), "path": str(path)}:
            kind = name.rpartition(".")[2]
        case _:
            raise ModelError(f"a module has no type and path: {entry!r:.80}")
    if kind not in _SUPPORTED:
        raise ModelError(
            f"modules of the type {name[:80]!r} are not supported; {', '.join(_SUPPORTED)} are"
        )
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path:
        raise ModelError(f"the path {path[:80]!r} of a module is outside the model's folder")
    return EmbeddingModule(kind, folder / path)


def load_steps(folder: Path, modules: Sequence[EmbeddingModule], hidden_size: int) -> VectorSteps:
    """Load the modules after the network.

    Args:
        folder: the model's, with modules.json.

    Raises:
        ModelError: a file is missing or broken, or modules do not fit each other.
    """
    kinds = [module.kind for module in modules]
    if kinds[:1] != ["Pooling"] or "Pooling" in kinds[1:]:
        raise ModelError(
            f"{folder / MODULES}: one module of the type Pooling has to follow the Transformer; "
            f"it has {', '.join(kinds) or 'none'}"
        )
    pooling = _load_pooling(modules[0].folder, hidden_size)
    dimensions = hidden_size * len(pooling.modes)
    steps: list[Dense | Normalize] = []
    for module in modules[1:]:
        if module.kind == "Dense":
            dense = load_dense(module.folder, dimensions)
            dimensions = dense.weight.shape[0]
            steps.append(dense)
        else:
            steps.append(Normalize())
    return VectorSteps(pooling, tuple(steps), dimensions)


def _load_pooling(folder: Path, hidden_size: int) -> Pooling:
    path = folder / "config.json"
    config = read_object(path, max_bytes=_MAX_BYTES)
    with values_of(path):
        for key in ("word_embedding_dimension", "embedding_dimension"):
            if (size := positive_int(config, key, hidden_size)) != hidden_size:
                raise ModelError(f"{key} is {size}, but the network's states have {hidden_size}")
        return Pooling.from_dict(config)
