"""Each mode of pooling, computed by hand; and the vectors after it."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from shared.errors import ModelError
from tests.worker.engine.embedding.conftest import LoadCase
from tests.worker.engine.embedding.random_models import SENTENCES
from worker.engine.embedding.modules_file import shortened
from worker.engine.embedding.pooling import Pooling
from worker.engine.embedding.token_batch import TokenBatch, padded_batch

_LENGTHS = (3, 1, 4)
_RNG = np.random.RandomState(3)
_STATES = _RNG.standard_normal((3, 4, 2)).astype(np.float32) - 3
for _row, _length in enumerate(_LENGTHS):
    _STATES[_row, _length:] = np.nan  # whatever padding holds is not pooled


def batch() -> TokenBatch:
    return padded_batch([[5] * length for length in _LENGTHS], 0, vocabulary_size=9, max_length=9)


def by_hand(mode: str, states: Any, first: int) -> Any:
    """Of one row.

    Args:
        first: the first position that is pooled.
    """
    pooled = states[first:]
    weights = np.arange(first + 1, len(states) + 1)[:, None]
    by_mode: dict[str, Callable[[], Any]] = {
        "cls": lambda: pooled[0],
        "lasttoken": lambda: pooled[-1],
        "max": lambda: pooled.max(axis=0),
        "mean": lambda: pooled.mean(axis=0),
        "mean_sqrt_len_tokens": lambda: pooled.sum(axis=0) / np.sqrt(len(pooled)),
        "weightedmean": lambda: (pooled * weights).sum(axis=0) / weights.sum(),
    }
    return by_mode[mode]()


MODES = ["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]


@pytest.mark.parametrize("mode", MODES)
def test_a_mode(mode: str) -> None:
    found = Pooling((mode,))(mx.array(_STATES), batch())
    expected = [by_hand(mode, _STATES[row, :length], 0) for row, length in enumerate(_LENGTHS)]
    np.testing.assert_allclose(np.array(found), np.stack(expected), rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_without_the_prompt(mode: str) -> None:
    prompts = [2, 0, 1]
    found = Pooling((mode,), includes_prompt=False)(mx.array(_STATES), batch(), prompts)
    expected = [
        by_hand(mode, _STATES[row, :length], prompts[row]) for row, length in enumerate(_LENGTHS)
    ]
    np.testing.assert_allclose(np.array(found), np.stack(expected), rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_is_all_prompt_gives_a_finite_vector(mode: str) -> None:
    states = mx.array(np.nan_to_num(_STATES))
    found = Pooling((mode,), includes_prompt=False)(states, batch(), [3, 0, 0])
    assert np.isfinite(np.array(found)).all()


def test_a_prompt_is_pooled_unless_the_model_says_otherwise() -> None:
    states = mx.array(_STATES)
    with_prompt = Pooling(("mean",))(states, batch(), [2, 0, 1])
    assert np.array_equal(np.array(with_prompt), np.array(Pooling(("mean",))(states, batch())))


def test_several_modes_are_concatenated_in_order() -> None:
    states = mx.array(_STATES)
    found = np.array(Pooling(("max", "cls"))(states, batch()))
    parts = [np.array(Pooling((mode,))(states, batch())) for mode in ("max", "cls")]
    assert np.array_equal(found, np.concatenate(parts, axis=1))


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({}, ("mean",)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ("cls",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, ("max", "mean")),
        ({"pooling_mode": "lasttoken"}, ("lasttoken",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
    ],
)
def test_old_and_new_configs(config: dict[str, Any], modes: tuple[str, ...]) -> None:
    assert Pooling.from_dict(config) == Pooling(modes)
    assert not Pooling.from_dict({**config, "include_prompt": False}).includes_prompt


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"pooling_mode": "median"}, "the pooling mode 'median' is not supported"),
        ({"pooling_mode": 3}, "pooling_mode is 3, not a mode or a list of them"),
        ({"pooling_mode": ["mean", 3]}, "pooling_mode is"),
        ({"pooling_mode_cls_token": "yes"}, "pooling_mode_cls_token is 'yes', which is not true"),
        ({"include_prompt": 0}, "include_prompt is 0, which is not true or false"),
    ],
)
def test_malformed_configs(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        Pooling.from_dict(config)


def test_shortened_vectors_are_normalised_again_if_they_were() -> None:
    vectors = mx.array([[3.0, 4.0, 12.0], [0.0, 0.0, 5.0]])
    cut = np.array(shortened(vectors, 2, normalizes=True))
    np.testing.assert_allclose(cut, np.array([[0.6, 0.8], [0, 0]]), rtol=1e-6)
    assert np.array(shortened(vectors, 2, normalizes=False)).tolist() == [[3, 4], [0, 0]]


def test_dimensions_of_a_model(load_case: LoadCase) -> None:
    model = load_case("gemma3")
    rows = [model.tokenize(text) for text in SENTENCES]
    whole, cut = np.array(model.embed(rows)), np.array(model.embed(rows, dimensions=7))
    assert cut.shape == (len(rows), 7)
    expected = whole[:, :7] / np.linalg.norm(whole[:, :7], axis=1, keepdims=True)
    np.testing.assert_allclose(cut, expected, rtol=1e-5)
    assert np.array_equal(np.array(model.embed(rows, dimensions=24)), whole)
    for dimensions in (0, 25, -1):
        with pytest.raises(ValueError, match=f"dimensions is {dimensions}; the model has 1 to 24"):
            model.embed(rows, dimensions=dimensions)


def test_only_a_model_with_a_last_normalize_module_normalises(load_case: LoadCase) -> None:
    for name, normalizes in (("bert", True), ("bert-pooling", False), ("bert-classifier", False)):
        model = load_case(name)
        assert model.normalizes is normalizes
    model = load_case("bert-pooling")
    rows = [model.tokenize(SENTENCES[0])]
    cut = np.array(model.embed(rows, dimensions=5))
    assert np.array_equal(cut, np.array(model.embed(rows))[:, :5])
