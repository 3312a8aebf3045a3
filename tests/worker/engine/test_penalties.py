"""Penalties and bias, beside numpy that counts every token anew, and in small known cases."""

from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.engine.reference_sampler import Array, log_softmax, penalised
from tests.worker.engine.samplings import GREEDY, sampling
from tests.worker.engine.tracked_batch import Shown, TrackedBatch, TrackedRow, random_logits
from worker.engine.penalties import LogitBias, PresenceAndFrequencyPenalty, RepetitionPenalty
from worker.engine.sampling import SamplingRow
from worker.link.orders import Sampling

_VOCABULARY = 12  # few, so that tokens come again
_FLAT = np.zeros(_VOCABULARY)
_TOKENS = st.integers(0, _VOCABULARY - 1)


def _asking(**fields: Any) -> Sampling:
    """Draws from few tokens and shows all log-probabilities."""
    return sampling(**{"temperature": 1.0, "logprobs": _VOCABULARY, **fields})


_ROWS = st.builds(
    TrackedRow,
    how=st.builds(
        _asking,
        repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.1, 2.0, 10.0]),
        presence_penalty=st.one_of(st.just(0.0), st.floats(-2, 2, width=16)),
        frequency_penalty=st.one_of(st.just(0.0), st.floats(-2, 2, width=16)),
        logit_bias=st.dictionaries(_TOKENS.map(str), st.floats(-20, 20, width=16), max_size=4),
        seed=st.integers(0, 1000),
    ),
    prompt_ids=st.lists(_TOKENS, min_size=1, max_size=4),
    answer_ids=st.lists(_TOKENS, max_size=4),
)


def _logprobs(shown: Shown) -> Array:
    return np.array([shown.top[token] for token in range(_VOCABULARY)])


def _weakened(shown: Shown) -> dict[int, float]:
    """By how much tokens were weakened, where the logits were equal and token 0 was let alone."""
    logprobs = _logprobs(shown)
    amounts = {token: round(float(logprobs[0] - value), 3) for token, value in enumerate(logprobs)}
    return {token: amount for token, amount in amounts.items() if amount}


# Beside the reference.


@settings(max_examples=60)
@given(
    rows=st.lists(_ROWS, min_size=1, max_size=5),
    later=st.lists(_ROWS, max_size=3),
    steps=st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 3)),
    staying=st.sets(st.integers(0, 7), min_size=1),
    number=st.integers(0, 2**32 - 1),
)
def test_every_token_is_counted_once_whoever_joins_and_leaves_in_between(
    rows: list[TrackedRow],
    later: list[TrackedRow],
    steps: tuple[int, int, int],
    staying: set[int],
    number: int,
) -> None:
    batch = TrackedBatch(rows)
    counter = iter(range(1000))

    def draw_and_compare(count: int) -> None:
        for _ in range(count):
            logits = np.stack(
                [random_logits(_VOCABULARY, 1.5, number, next(counter)) for _ in batch.rows]
            )
            expected = [
                log_softmax(penalised(logits[place], row.how, row.prompt_ids, row.answer_ids))
                for place, row in enumerate(batch.rows)
            ]
            batch.step(logits)
            for row, right in zip(batch.rows, expected, strict=True):
                np.testing.assert_allclose(_logprobs(row.shown[-1]), right, rtol=1e-5, atol=1e-4)

    draw_and_compare(steps[0])
    batch.join(later)
    draw_and_compare(steps[1])
    batch.keep([place for place in sorted(staying, reverse=True) if place < len(batch.rows)] or [0])
    draw_and_compare(steps[2])


# Repetition.


def test_the_repetition_penalty_divides_what_is_above_0_and_multiplies_what_is_below() -> None:
    row = TrackedRow(_asking(repetition_penalty=2.0), prompt_ids=[1, 2, 3])
    logits = _FLAT.copy()
    logits[[1, 2, 4, 5]] = [3.0, -3.0, 3.0, -3.0]
    TrackedBatch([row]).step(logits[None])
    shown = _logprobs(row.shown[0])
    found = shown - shown[0]
    np.testing.assert_allclose(found[:6], [0.0, 1.5, -6.0, 0.0, 3.0, -3.0], atol=1e-5)


def test_the_repetition_penalty_weakens_prompt_and_answer_however_often_they_hold_a_token() -> None:
    row = TrackedRow(_asking(repetition_penalty=2.0), prompt_ids=[1, 1], answer_ids=[2, 2, 1])
    batch = TrackedBatch([row])
    ones = np.full((1, _VOCABULARY), 1.0)
    batch.step(ones + 50 * (np.arange(_VOCABULARY) == 3))
    assert row.answer_ids[-1] == 3
    batch.step(ones)
    assert _weakened(row.shown[-1]) == {1: 0.5, 2: 0.5, 3: 0.5}


# Presence and frequency.


def test_presence_and_frequency_leave_the_prompt_alone() -> None:
    how = _asking(frequency_penalty=1.0, presence_penalty=0.5)
    fresh = TrackedRow(how, prompt_ids=[1, 2, 2])
    resumed = TrackedRow(how, prompt_ids=[1, 2, 2], answer_ids=[2, 3, 3])
    TrackedBatch([fresh, resumed]).step(np.stack([_FLAT, _FLAT]))
    assert _weakened(fresh.shown[0]) == {}
    assert _weakened(resumed.shown[0]) == {2: 1.5, 3: 2.5}


# Bias.


@settings(max_examples=40)
@given(token=_TOKENS, number=st.integers(0, 2**32 - 1))
def test_a_bias_of_100_forces_a_token_and_of_minus_100_forbids_it(token: int, number: int) -> None:
    logits = np.tile(random_logits(_VOCABULARY, 2.0, number), (40, 1))

    def drawn(bias: float) -> list[int]:
        rows = [
            TrackedRow(sampling(temperature=1.0, seed=seed, logit_bias={str(token): bias}))
            for seed in range(40)
        ]
        return TrackedBatch(rows).step(logits)

    assert drawn(100.0) == [token] * 40
    assert token not in drawn(-100.0)


# What nobody asks for.


def test_logits_that_nobody_wants_changed_are_not_even_copied() -> None:
    rows = [SamplingRow(GREEDY, [1, 2]), SamplingRow(sampling(temperature=1.0), [3])]
    logits, inputs = mx.zeros((2, _VOCABULARY)), mx.array([2, 3])
    assert RepetitionPenalty(rows, _VOCABULARY).apply(logits, inputs) is logits
    assert PresenceAndFrequencyPenalty(rows, _VOCABULARY).apply(logits, inputs) is logits
    assert LogitBias(rows).apply(logits) is logits
