"""Each family gives what PyTorch gives, for rows alone and in a batch."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.rounding import assert_near, difference, own_difference
from tests.worker.engine.embedding.conftest import LoadCase
from tests.worker.engine.embedding.families import CASES
from tests.worker.engine.embedding.nearness import assert_computes, assert_vectors, vectors_of
from tests.worker.engine.embedding.random_models import PAIRS, PROMPTS, SENTENCES
from tests.worker.engine.embedding.reference_files import reference
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.embedding.token_batch import padded_batch

EMBEDDING = [name for name, case in CASES.items() if not case.is_classifier]
CLASSIFIERS = [name for name, case in CASES.items() if case.is_classifier]


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


@pytest.mark.parametrize("name", EMBEDDING)
def test_states_of_rows_alone(name: str, load_case: LoadCase) -> None:
    model = load_case(name)

    def alone() -> Any:
        return np.concatenate(
            [hidden_states(model, [model.tokenize(text)])[0] for text in SENTENCES]
        )

    assert_computes(model, alone, reference(name, "hidden"))


@pytest.mark.parametrize("name", EMBEDDING)
def test_states_of_rows_in_a_batch(name: str, load_case: LoadCase) -> None:
    model = load_case(name)

    def together() -> Any:
        return np.concatenate(hidden_states(model, [model.tokenize(text) for text in SENTENCES]))

    assert_computes(model, together, reference(name, "hidden"))


@pytest.mark.parametrize("name", EMBEDDING)
def test_vectors_of_a_batch(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    vectors = model.embed([model.tokenize(text) for text in SENTENCES])
    assert vectors.dtype == mx.float32
    assert vectors.shape == (len(SENTENCES), model.dimensions)
    assert_vectors(model, name)


@pytest.mark.parametrize("name", EMBEDDING)
def test_vectors_with_a_prompt(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    rows = [model.tokenize(text, "query") for text in SENTENCES]
    unpooled = [model.unpooled_tokens("query")] * len(rows)
    expected = reference(name, "queries")
    assert_computes(model, lambda: model.embed(rows, unpooled_tokens=unpooled), expected)
    assert difference(vectors_of(model), expected) > 0.05


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
    own = own_difference(model.network, lambda: vectors_of(model))
    assert_near(backwards[-2::-1], vectors, own)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_logits_of_pairs(name: str, load_case: LoadCase) -> None:
    model = load_case(name)
    pairs = [model.tokenize_pair(*pair) for pair in PAIRS]
    expected = reference(name, "logits")

    def alone() -> Any:
        return np.concatenate([np.array(model.classify([pair])) for pair in pairs])

    assert_computes(model, alone, expected)
    assert_computes(model, lambda: model.classify(pairs), expected)
    assert model.classify(pairs).dtype == mx.float32
    assert model.dimensions == expected.shape[1]
    assert np.abs(expected - expected[0]).max() > 0.05
