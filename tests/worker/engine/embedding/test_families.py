"""Each family gives what PyTorch gives, for rows alone and in a batch."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.worker.engine.embedding.conftest import LoadCase
from tests.worker.engine.embedding.families import CASES
from tests.worker.engine.embedding.random_models import PAIRS, PROMPTS, SENTENCES
from tests.worker.engine.embedding.reference_files import reference
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.embedding.token_batch import padded_batch

EMBEDDING = [name for name, case in CASES.items() if not case.is_classifier]
CLASSIFIERS = [name for name, case in CASES.items() if case.is_classifier]
_STATES_TOLERANCE = 1e-4
"""States are up to 5."""
_TOLERANCE = 2e-5
"""Of vectors and logits, which are up to 4."""


def hidden_states(model: EmbeddingModel, rows: Sequence[Sequence[int]]) -> list[Any]:
    """The states of each row's tokens, without those of padding."""
    body = model.network.body
    batch = padded_batch(
        rows,
        body.padding_id,
        vocabulary_size=body.vocabulary_size,
        max_length=body.max_length,
    )
    states = np.array(model.network(batch))
    assert np.isfinite(states).all()
    return [row[: len(tokens)] for row, tokens in zip(states, rows, strict=True)]


def difference(found: Any, expected: Any) -> float:
    found = np.array(found)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("name", EMBEDDING)
def test_states_of_rows_alone(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    alone = [hidden_states(model, [model.tokenize(text)])[0] for text in SENTENCES]
    assert difference(np.concatenate(alone), reference(name, "hidden")) < _STATES_TOLERANCE


@pytest.mark.parametrize("name", EMBEDDING)
def test_states_of_rows_in_a_batch(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    together = hidden_states(model, [model.tokenize(text) for text in SENTENCES])
    assert difference(np.concatenate(together), reference(name, "hidden")) < _STATES_TOLERANCE


@pytest.mark.parametrize("name", EMBEDDING)
def test_vectors_of_a_batch(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    vectors = model.embed([model.tokenize(text) for text in SENTENCES])
    assert vectors.dtype == mx.float32
    assert vectors.shape == (len(SENTENCES), model.dimensions)
    assert difference(vectors, reference(name, "vectors")) < _TOLERANCE


@pytest.mark.parametrize("name", EMBEDDING)
def test_vectors_with_a_prompt(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    rows = [model.tokenize(text, "query") for text in SENTENCES]
    unpooled = [model.unpooled_tokens("query")] * len(rows)
    vectors = model.embed(rows, unpooled_tokens=unpooled)
    assert difference(vectors, reference(name, "queries")) < _TOLERANCE
    without = model.embed([model.tokenize(text) for text in SENTENCES])
    assert difference(without, np.array(vectors)) > 0.05


def test_a_prompt_that_is_not_pooled_is_counted_with_the_token_before_it(
    load_case: LoadCase,
) -> None:
    assert load_case("bert-pooling").unpooled_tokens("query") == 1 + len(PROMPTS["query"])
    assert load_case("bert-pooling").unpooled_tokens() == 0
    assert load_case("bert").unpooled_tokens("query") == 0


@pytest.mark.parametrize("name", EMBEDDING)
def test_other_rows_do_not_matter(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    rows = [model.tokenize(text) for text in SENTENCES]
    vectors = np.array(model.embed(rows))
    backwards = np.array(model.embed([*reversed(rows), rows[2]]))
    assert np.abs(backwards[-2::-1] - vectors).max() < _TOLERANCE


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_logits_of_pairs(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    pairs = [model.tokenize_pair(*pair) for pair in PAIRS]
    expected = reference(name, "logits")
    alone = np.concatenate([np.array(model.classify([pair])) for pair in pairs])
    assert difference(alone, expected) < _TOLERANCE
    assert difference(model.classify(pairs), expected) < _TOLERANCE
    assert model.classify(pairs).dtype == mx.float32
    assert model.dimensions == expected.shape[1]
    assert np.abs(expected - expected[0]).max() > 0.05
