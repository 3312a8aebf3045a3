"""What a model computes beside the references, as near as rounding allows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.rounding import allowed, assert_near, difference, own_difference
from tests.worker.engine.embedding.random_models import SENTENCES
from tests.worker.engine.embedding.reference_files import reference
from worker.engine.embedding.model import EmbeddingModel


def vectors_of(model: EmbeddingModel) -> Any:
    return np.array(model.embed([model.tokenize(text) for text in SENTENCES]))


def assert_computes(model: EmbeddingModel, compute: Callable[[], Any], expected: Any) -> None:
    """Assert that what the model computes differs from what is expected by rounding alone."""
    assert_near(compute(), expected, own_difference(model.network, compute))


def assert_vectors(model: EmbeddingModel, name: str) -> None:
    """Assert that the vectors of the sentences are those of the reference of this name."""
    assert_computes(model, lambda: vectors_of(model), reference(name, "vectors"))


def assert_other_vectors(model: EmbeddingModel, name: str) -> None:
    """Assert that the vectors differ by at least twice what rounding explains."""
    found, expected = vectors_of(model), reference(name, "vectors")
    own = own_difference(model.network, lambda: vectors_of(model))
    assert difference(found, expected) > 2 * allowed(own, float(np.abs(expected).max()))
