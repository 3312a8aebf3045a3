"""Draws and penalties beside plain numpy, over many random logits."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.worker.engine.samplings import GREEDY, sampling
from worker.engine.sampling import Sampler, greedy, make_processors, make_sampler, row_key

Array = NDArray[np.float64]

_VOCABULARY = 40
_SEEDS = st.integers(0, 2**64 - 1)
_LOGITS = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(0, 2, _VOCABULARY)
)
_BORDER = 1e-4  # float32 may decide either way for what lies this close to a border


def _logprobs(logits: Array) -> Array:
    result: Array = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    return result


def _draw(sampler: Sampler, logits: Array) -> int:
    (token,) = sampler(mx.array(_logprobs(logits)[None], dtype=mx.float32)).tolist()  # type: ignore[misc]
    assert isinstance(token, int)
    return token


def _draws(logits: Array, count: int, **fields: Any) -> list[int]:
    sampler = make_sampler(sampling(**{"temperature": 1.0, **fields}), 0)
    return [_draw(sampler, logits) for _ in range(count)]


def _allowed(logits: Array, temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that may be drawn, and those on the border."""
    scores = logits / temperature
    scores = scores - scores.max()
    kept = np.ones(_VOCABULARY, dtype=bool)
    if min_p > 0:
        kept &= scores >= np.log(min_p) - _BORDER
    order = np.argsort(-np.where(kept, scores, -np.inf))
    if top_k:
        order = order[:top_k]
    order = order[kept[order]]
    probabilities = np.exp(scores[order])
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities) - probabilities
    return {int(token) for token in order[before <= top_p + _BORDER]} if top_p < 1 else set(order)


# Greedy.


@given(logits=_LOGITS, seed=_SEEDS)
def test_temperature_0_top_p_0_and_top_k_1_all_take_the_likeliest(logits: Array, seed: int) -> None:
    for fields in ({"temperature": 0.0}, {"top_p": 0.0}, {"top_k": 1}):
        assert _draws(logits, 2, seed=seed, **fields) == [int(logits.argmax())] * 2


def test_greedy_takes_the_likeliest_of_each_row() -> None:
    rows = np.random.default_rng(1).normal(size=(16, _VOCABULARY))
    assert greedy(mx.array(rows)).tolist() == rows.argmax(axis=-1).tolist()


def test_all_greedy_rows_share_one_sampler_so_that_the_batch_makes_one_call() -> None:
    assert make_sampler(GREEDY, 0) is make_sampler(sampling(temperature=1.0, top_k=1), 7)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("temperature", size) for size in (1e-6, 1e-30, 1e-40, 1e-60, 1e-300)),
        *(("top_p", size) for size in (1e-6, 1e-30, 1e-40)),
        ("top_p", 1e-60),
        ("top_p", 1e-300),
    ],
)
def test_a_vanishing_temperature_or_top_p_takes_the_likeliest(name: str, size: float) -> None:
    logits = np.random.default_rng(2).normal(0, 2, _VOCABULARY)
    assert _draws(logits, 3, **{name: size}) == [int(logits.argmax())] * 3


# Seeds.


@given(logits=_LOGITS, seed=_SEEDS, position=st.integers(0, 2**31))
def test_a_draw_depends_on_logits_seed_and_position_alone(
    logits: Array, seed: int, position: int
) -> None:
    def tokens(first: int, count: int) -> list[int]:
        sampler = make_sampler(sampling(temperature=1.2, top_p=0.9, seed=seed), first)
        return [_draw(sampler, logits) for _ in range(count)]

    whole = tokens(position, 6)
    assert tokens(position, 6) == whole
    for cut in range(6):
        assert tokens(position + cut, 6 - cut) == whole[cut:]


def test_other_seeds_and_other_positions_draw_otherwise() -> None:
    flat = np.zeros(_VOCABULARY)
    by_seed = [_draws(flat, 30, seed=seed) for seed in range(20)]
    assert len({tuple(tokens) for tokens in by_seed}) == 20
    assert all(len(set(tokens)) > 10 for tokens in by_seed)


def test_every_seed_and_position_has_a_key_of_its_own() -> None:
    keys = {row_key(seed, position) for seed in range(100) for position in range(100)}
    assert len(keys) == 100 * 100


# Filters.


@settings(max_examples=150)
@given(
    logits=_LOGITS,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 2, 5, _VOCABULARY, 10 * _VOCABULARY]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=_SEEDS,
)
def test_top_k_top_p_and_min_p_never_let_another_token_be_drawn(
    logits: Array, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    fields = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    drawn = set(_draws(logits, 10, seed=seed, **fields))
    assert drawn <= _allowed(logits, temperature, top_k, top_p, min_p)


@pytest.mark.parametrize(
    "fields", [{"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 6, "top_p": 0.9}]
)
def test_every_token_that_is_allowed_is_drawn_at_times(fields: dict[str, Any]) -> None:
    logits = np.array([2.0, 1.8, 1.5, 1.2, 1.0, 0.5, -1.0, -2.0] + [-6.0] * 32)
    everything = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **fields}
    assert set(_draws(logits, 400, seed=3, **fields)) == _allowed(logits, 1.0, **everything)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_tokens_are_drawn_as_often_as_the_softmax_says(temperature: float) -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -0.5, -1.0])
    expected = np.exp(logits / temperature)
    expected *= 3000 / expected.sum()
    counts = np.bincount(_draws(logits, 3000, seed=11, temperature=temperature), minlength=6)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 5 degrees of freedom: 1 in 1000, and the seed is fixed


# Penalties and bias.


def _processed(logits: Array, ids: list[int], prompt_length: int, **fields: Any) -> Array:
    row = mx.array(logits[None], dtype=mx.float32)
    for processor in make_processors(sampling(**fields), prompt_length):
        row = processor(mx.array(ids), row)
    found: Array = np.array(row)[0].astype(np.float64)
    return found


_IDS = st.lists(st.integers(0, _VOCABULARY - 1), min_size=1, max_size=20)


def test_no_penalties_mean_no_processors() -> None:
    assert make_processors(GREEDY, 3) == []


@given(logits=_LOGITS, ids=_IDS, penalty=st.sampled_from([0.5, 1.1, 2.0, 10.0]))
def test_the_repetition_penalty_weakens_what_prompt_and_answer_hold(
    logits: Array, ids: list[int], penalty: float
) -> None:
    expected = logits.copy()
    seen = sorted(set(ids))
    expected[seen] = np.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
    found = _processed(logits, ids, 2, repetition_penalty=penalty)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@given(
    logits=_LOGITS,
    ids=_IDS,
    data=st.data(),
    presence=st.floats(-2, 2, width=16),
    frequency=st.floats(-2, 2, width=16),
)
def test_presence_and_frequency_penalties_count_the_answer_alone(
    logits: Array, ids: list[int], data: st.DataObject, presence: float, frequency: float
) -> None:
    prompt_length = data.draw(st.integers(1, len(ids)), label="prompt_length")
    counts = np.bincount(ids[prompt_length:], minlength=_VOCABULARY)
    expected = logits - frequency * counts - presence * (counts > 0)
    found = _processed(
        logits, ids, prompt_length, presence_penalty=presence, frequency_penalty=frequency
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@given(logits=_LOGITS, token=st.integers(0, _VOCABULARY - 1), seed=_SEEDS)
def test_a_bias_of_100_forces_a_token_and_of_minus_100_forbids_it(
    logits: Array, token: int, seed: int
) -> None:
    forced = _processed(logits, [0], 1, logit_bias={str(token): 100.0})
    assert set(_draws(forced, 5, seed=seed)) == {token}
    forbidden = _processed(logits, [0], 1, logit_bias={str(token): -100.0})
    assert token not in _draws(forbidden, 5, seed=seed)


@given(logits=_LOGITS, bias=st.dictionaries(st.integers(0, _VOCABULARY - 1), st.floats(-100, 100)))
def test_a_bias_is_added_to_its_tokens_and_to_no_other(
    logits: Array, bias: dict[int, float]
) -> None:
    expected = logits.copy()
    for token, value in bias.items():
        expected[token] += value
    found = _processed(logits, [0], 1, logit_bias={str(t): v for t, v in bias.items()})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
