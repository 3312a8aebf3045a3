"""Folders of small random models."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.worker.engine.embedding.families import CASES
from tests.worker.engine.embedding.reference_files import shapes_of
from worker.engine.embedding.model import EmbeddingModel, load_embedding_model

WriteCase = Callable[[str], Path]
LoadCase = Callable[[str], EmbeddingModel]


@pytest.fixture
def write_case(tmp_path: Path) -> WriteCase:
    """Writes a case's folder, for tests that change it."""

    def write(name: str) -> Path:
        CASES[name].write(tmp_path / name, shapes_of(name))
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def load_case(tmp_path_factory: pytest.TempPathFactory) -> LoadCase:
    """Loads a case once."""

    @cache
    def load(name: str) -> EmbeddingModel:
        folder = tmp_path_factory.mktemp(name)
        CASES[name].write(folder, shapes_of(name))
        return load_embedding_model(folder)

    return load
