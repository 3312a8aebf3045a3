"""Whether one engine more at work pays; figures of the demo model on two cores."""

import pytest

from worker.scheduling.engine_costs import (
    RequestCost,
    idle_engine_cost_ms,
    scale_up_cost_ms,
)

PROMPT_MS, ANSWER_TOKENS = 640.0, 48.0


def work(prompt_ms: float = PROMPT_MS, answer_tokens: float = ANSWER_TOKENS) -> RequestCost:
    """As one engine with two threads takes."""
    return RequestCost.measured(prompt_ms, answer_tokens, 65.0, 4.0, threads=2)


def test_threads_that_were_measured_with_do_not_matter() -> None:
    two, one = work(), RequestCost.measured(853.0, ANSWER_TOKENS, 104.0, 4.0, threads=1)
    assert one.prompt_ms == pytest.approx(two.prompt_ms, rel=0.01)
    assert one.step_ms == pytest.approx(two.step_ms, rel=0.01)


def test_a_second_engine_pays_from_some_sequences_on() -> None:
    pays = [scale_up_cost_ms(work(), 1, sequences, 2) < 0 for sequences in range(2, 33)]
    first = pays.index(True) + 2
    assert 9 <= first <= 13 and all(pays[first - 2 :])


def test_sooner_where_prompts_are_long_and_later_where_they_are_known() -> None:
    assert scale_up_cost_ms(work(prompt_ms=8000), 1, 2, 2) < 0
    assert scale_up_cost_ms(work(prompt_ms=100), 1, 16, 2) > 0


def test_an_engine_more_is_neither_opened_nor_left_where_that_gains_little() -> None:
    between = [
        sequences
        for sequences in range(2, 33)
        if scale_up_cost_ms(work(), 1, sequences, 2) >= 0
        and not idle_engine_cost_ms(work(), 2, sequences, 2)
    ]
    assert between, "who comes and goes there changes nothing"
    assert idle_engine_cost_ms(work(), 2, 2, 2) > 0


@pytest.mark.parametrize("cores", [1, 4, 16])
def test_with_other_cores_more_sequences_never_want_fewer_engines(cores: int) -> None:
    for busy in range(1, 8):
        pays = [
            scale_up_cost_ms(work(), busy, sequences, cores) < 0 for sequences in range(busy, 256)
        ]
        assert pays == sorted(pays)
