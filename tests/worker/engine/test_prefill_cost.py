"""What prefill passes are predicted to take."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.prefill_cost import PrefillCost

_SECONDS = st.floats(1e-4, 100)
_TOKENS = st.integers(1, 10_000)


def test_two_passes_tell_the_fixed_part_from_the_part_of_a_token() -> None:
    speed = PrefillCost.from_measurements(8, 0.1 + 8 * 0.002, 128, 0.1 + 128 * 0.002)
    assert speed.floor_s == pytest.approx(0.1)
    assert speed.tokens_per_s == pytest.approx(500)
    assert speed.overhead_tokens in (49, 50)
    assert speed.seconds(300) == pytest.approx(0.1 + 0.6)
    assert speed.tokens_in(0.7, 0) in (299, 300)


def test_where_more_tokens_took_no_longer_a_token_still_takes_something() -> None:
    for many_s in (0.1, 0.05):
        speed = PrefillCost.from_measurements(8, 0.1, 128, many_s)
        assert 0 < speed.tokens_per_s < 10**6
        assert 0 <= speed.floor_s <= 0.1
        assert speed.seconds(10_000) > speed.seconds(100) > 0


def test_where_all_the_time_is_the_tokens_the_fixed_part_is_not_negative() -> None:
    speed = PrefillCost.from_measurements(8, 0.001, 128, 1.0)
    assert speed.floor_s == 0
    assert speed.overhead_tokens == 0


def test_two_passes_of_one_token_each_are_no_error() -> None:
    assert PrefillCost.from_measurements(1, 0.1, 1, 0.1).tokens_per_s > 0


@given(st.integers(1, 64), _SECONDS, st.integers(65, 512), _SECONDS, _TOKENS, _TOKENS)
def test_whatever_was_measured_first_more_tokens_take_longer_and_more_time_holds_more(
    few: int, few_s: float, many: int, many_s: float, tokens: int, context: int
) -> None:
    speed = PrefillCost.from_measurements(few, few_s, many, many_s)
    assert 0 < speed.seconds(tokens, context) < speed.seconds(tokens + 1, context)
    seconds = speed.seconds(tokens, context)
    assert speed.tokens_in(seconds, context) in (tokens - 1, tokens)
    assert speed.tokens_in(seconds / 2, context) <= speed.tokens_in(seconds, context)


def test_less_time_than_the_fixed_part_holds_no_token() -> None:
    assert PrefillCost(0.5, 0.001).tokens_in(0.4, 0) <= 0
    assert PrefillCost(0.5, 0.001).tokens_in(0.5, 0) == 0


def test_predictions_go_to_what_passes_really_take() -> None:
    speed = PrefillCost(0.1, 0.001)
    errors = []
    for _ in range(12):
        speed.record_pass(100, 0, 0.1 + 100 * 0.004)
        errors.append(abs(speed.seconds(100) - 0.5))
    assert all(after < before for before, after in itertools.pairwise(errors))
    assert errors[-1] < 0.001


def test_one_pass_out_of_the_ordinary_moves_the_prediction_only_part_of_the_way() -> None:
    speed = PrefillCost(0.0, 0.001)
    speed.record_pass(100, 0, 10.0)
    assert 0.1 < speed.seconds(100) < 10.0


def test_a_machine_that_stood_still_during_a_pass_hardly_slows_the_next_ones() -> None:
    speed = PrefillCost(floor_s=0.01, token_s=0.001)
    speed.record_pass(100, 0, 3600)
    assert speed.seconds(100) < 3 * 0.11


def test_a_pass_that_took_less_than_the_fixed_part_still_counts_as_some_time_a_token() -> None:
    speed = PrefillCost(1.0, 0.01)
    for _ in range(50):
        speed.record_pass(100, 0, 0.5)
    assert speed.tokens_per_s == pytest.approx(1000)  # a fifth of it
    assert speed.seconds(10) > 0


def test_a_context_that_nobody_measured_is_as_fast_as_the_nearest_shorter_one() -> None:
    speed = PrefillCost(0.0, 0.001)
    for _ in range(50):
        speed.record_pass(100, 1000, 0.2)
    slow = pytest.approx(0.2)
    assert speed.seconds(100, 1000) == slow
    assert speed.seconds(100, 1200) == slow  # the same band
    assert speed.seconds(100, 100_000) == slow
    assert speed.seconds(100, 300) == pytest.approx(0.1)
    assert speed.seconds(100) == pytest.approx(0.1)


def test_bands_of_context_are_measured_apart() -> None:
    speed = PrefillCost(0.0, 0.001)
    for _ in range(60):
        for context, seconds in ((0, 0.1), (300, 0.2), (1000, 0.3), (4000, 0.4)):
            speed.record_pass(100, context, seconds)
    for context, seconds in ((0, 0.1), (255, 0.1), (256, 0.2), (1000, 0.3), (9000, 0.4)):
        assert speed.seconds(100, context) == pytest.approx(seconds), context


@given(st.lists(st.tuples(_TOKENS, _TOKENS, _SECONDS), max_size=30), _TOKENS)
def test_whatever_is_measured_a_token_takes_a_positive_time_at_every_context(
    passes: list[tuple[int, int, float]], context: int
) -> None:
    speed = PrefillCost(0.01, 0.001)
    for tokens, before, seconds in passes:
        speed.record_pass(tokens, before, seconds)
    assert speed.floor_s == 0.01
    assert speed.seconds(1, context) > 0.01
    assert speed.tokens_in(1e6, context) > 0
