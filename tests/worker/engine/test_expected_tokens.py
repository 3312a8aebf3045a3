"""Answers that are equal up to ties, and those that are not."""

from typing import Any

import numpy as np
import pytest

from tests.ties import TIE_GAP, take_left_out, tie_gap
from tests.worker.engine.expected_tokens import ExpectedTokens, drawn_alone, likeliest
from tests.worker.engine.reference_sampler import contenders, expect
from tests.worker.engine.samplings import GREEDY, sampling
from tests.worker.engine.tracked_batch import random_logits
from tests.worker.engine.watched_network import WatchedNetwork, greedy_alone, prepared, random_ids
from worker.link.orders import Sampling

_FLOAT32 = np.finfo(np.float32).eps
_WAYS = [
    GREEDY,
    sampling(temperature=0.9, seed=3),
    sampling(temperature=0.7, top_k=5, seed=4),
    sampling(temperature=1.2, top_p=0.8, seed=5),
    sampling(temperature=1.0, min_p=0.1, seed=6, repetition_penalty=1.3),
]


def _expected() -> ExpectedTokens:
    """4, 5, 6, where 7 is as likely as 5."""
    return ExpectedTokens([4, 5, 6], [{4}, {5, 7}, {6}].__getitem__)


def test_equal_answers_are_equal_and_nothing_is_left_out() -> None:
    assert [4, 5, 6] == _expected() == [4, 5, 6]
    assert take_left_out() == []


def test_what_follows_a_tie_is_left_out_and_noted() -> None:
    assert [4, 7, 9] == _expected()
    assert take_left_out() == ["from token 1 on: 7 is as good as 5"]


@pytest.mark.parametrize("other", [[3, 5, 6], [4, 6, 6], [4, 5, 7], [4, 5], [4, 5, 6, 6], []])
def test_any_other_token_and_another_length_differ(other: list[int]) -> None:
    assert other != _expected()
    assert not other == _expected()
    assert take_left_out() == []


def test_a_part_of_an_answer_keeps_its_ties() -> None:
    assert [7, 6] == _expected()[1:]
    assert [5, 7] != _expected()[1:]
    assert len(take_left_out()) == 1


def test_two_tokens_tie_where_their_logits_are_as_near_as_rounding_brings_them() -> None:
    logits = np.array([3.0, 1.0, 3.0 - 1e-5])
    assert [2] == likeliest([(0, logits)])
    assert [1] != likeliest([(0, logits)])
    assert [2] != likeliest([(0, logits * [1, 1, 0.99])])
    assert len(take_left_out()) == 1


def test_a_gap_that_counts_as_a_tie_is_small_where_all_logits_are() -> None:
    assert tie_gap(np.array([20.0, -np.inf])) == TIE_GAP
    assert tie_gap(np.array([0.02, 0.01])) == pytest.approx(1024 * _FLOAT32 * 0.02)


@pytest.mark.parametrize("how", _WAYS, ids=str)
def test_contenders_are_what_is_drawn_where_logits_are_off_by_half_the_gap(how: Sampling) -> None:
    gap, prompt, answer = 0.05, [1, 2], [3]
    numbers = []
    for seed in range(100):
        logits = random_logits(60, 2.0, seed)
        found = contenders(logits, how, prompt, answer, gap)
        numbers.append(len(found))
        assert expect(logits, how, prompt, answer).token in found
        for other in range(5):
            off = np.random.default_rng([seed, other]).uniform(-gap / 2.2, gap / 2.2, len(logits))
            assert expect(logits + off, how, prompt, answer).token in found
    assert np.mean(numbers) < 2, "nearly any token would do"
    assert max(numbers) > 1


@pytest.mark.parametrize("how", _WAYS, ids=str)
def test_a_planted_token_is_found_in_an_answer_of_any_sampling(
    network: WatchedNetwork, how: Sampling
) -> None:
    sequence = prepared(1, random_ids(20, 1), how=how)
    tokens: list[Any] = list(greedy_alone(network, sequence.prompt_ids, 6))
    answer = drawn_alone(network, sequence, tokens)
    for place in range(6):
        wrong = [*tokens[:place], (tokens[place] + 1) % 256, *tokens[place + 1 :]]
        assert wrong != answer
    assert take_left_out() == []
