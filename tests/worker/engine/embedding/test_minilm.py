"""The real all-MiniLM-L6-v2 gives the vectors of sentence-transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker.engine.embedding.reference_files import reference
from tests.worker.engine.embedding.texts import COUNT, texts
from worker.engine.embedding.kind import embedding_kind
from worker.engine.embedding.model import EmbeddingModel, load_embedding_model
from worker.models.file_reading import read_object

_COSINE = 0.9999
_POSITIONS = 512


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> EmbeddingModel:
    return load_embedding_model(minilm_folder)


@pytest.fixture(scope="module")
def rows(minilm: EmbeddingModel) -> list[list[int]]:
    return [minilm.tokenize(text)[:_POSITIONS] for text in texts()]


def cosines(found: Any, expected: Any) -> Any:
    found = np.array(found)
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return (found * expected).sum(axis=1) / norms


def test_what_its_files_say(minilm: EmbeddingModel, minilm_folder: Path) -> None:
    assert (minilm.kind, minilm.dimensions, minilm.max_tokens) == ("embedding", 384, 256)
    assert minilm.warnings == ()
    config = read_object(minilm_folder / "config.json", max_bytes=10_000)
    assert embedding_kind(minilm_folder, config) == "embedding"


def test_the_texts_have_1_to_400_tokens_and_more(rows: list[list[int]]) -> None:
    lengths = [len(row) - 2 for row in rows]
    assert len(rows) == COUNT
    assert min(lengths) == 1
    assert max(lengths) > 400
    assert sum(length > 200 for length in lengths) >= 10


def test_texts_alone(minilm: EmbeddingModel, rows: list[list[int]]) -> None:
    vectors = np.concatenate([np.array(minilm.embed([row])) for row in rows])
    assert cosines(vectors, reference("minilm", "vectors")).min() >= _COSINE
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5


def test_texts_in_mixed_batches(minilm: EmbeddingModel, rows: list[list[int]]) -> None:
    """Batches of neighbours by length, and two of all lengths, from the shortest to the longest."""
    expected = reference("minilm", "vectors")
    by_length = sorted(range(COUNT), key=lambda index: len(rows[index]))
    neighbours = [by_length[begin : begin + 20] for begin in range(0, COUNT, 20)]
    for chosen in (*neighbours, by_length[19::20], by_length[0::40]):
        vectors = minilm.embed([rows[index] for index in chosen])
        assert cosines(vectors, expected[chosen]).min() >= _COSINE


def test_other_texts_have_other_vectors() -> None:
    expected = reference("minilm", "vectors")
    assert np.median(cosines(expected, np.roll(expected, 1, axis=0))) < 0.5
