"""How long the prompts on a worker keep its engines busy, by value."""

from typing import Any

import pytest

from shared.ids import ModelId
from shared.messages.model_status import ModelPerformance
from tests.worker.values import MAC, OWNER, TINY, active, dispatched
from worker.link.facts import SequenceOutput
from worker.requests.active_request import ActiveRequest
from worker.scheduling.model_statistics import prefill_ms

_SPEED = ModelPerformance(prefill_tokens_per_s=1000, bytes_per_token=4, prefill_share=0.5)


def _waiting(tokens: int, **fields: Any) -> ActiveRequest:
    return active(prompt=[1] * tokens, **fields)


def _running(tokens: int, *, engine: int = 0, **fields: Any) -> ActiveRequest:
    """One that the engine has understood, and not begun."""
    request = _waiting(tokens, **fields)
    request.admit(engine)
    request.start_choice(request.choices[0], tokens)
    return request


def _ms(*requests: ActiveRequest, engines: int = 1, speed: ModelPerformance = _SPEED) -> float:
    return prefill_ms(range(engines), requests, {TINY: speed})


def test_without_requests_nothing_is_to_be_done() -> None:
    assert _ms() == 0


# One request.


def test_of_one_that_waits_as_much_is_expected_to_be_kept_as_of_others() -> None:
    assert _ms(_waiting(800)) == 400
    assert _ms(_waiting(800), speed=ModelPerformance(prefill_tokens_per_s=1000)) == 800


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x" * 4000},
        {"prompt": "é" * 2000},
        {"prompt": ["x" * 1000, "x" * 3000]},
        {"prompt": None, "messages": [{"role": "user", "content": "x" * 2000}] * 2},
    ],
)
def test_tokens_of_a_text_that_waits_are_told_from_its_bytes(fields: dict[str, Any]) -> None:
    assert _ms(active(**fields)) == 500


def test_before_a_prompt_was_counted_tokens_are_taken_for_those_of_english() -> None:
    unknown = ModelPerformance(prefill_tokens_per_s=1000)
    assert _ms(active(prompt="x" * 4000), speed=unknown) == 1000


def test_what_the_engine_counted_is_known_better_than_from_bytes() -> None:
    request = active(prompt="x" * 4000)
    request.admit(0)
    assert _ms(request) == 500
    request.start_choice(request.choices[0], 3000)
    assert _ms(request) == 1500


def test_once_it_has_begun_what_was_kept_is_not_to_be_computed_and_the_rest_is() -> None:
    request = _running(1000)
    request.restore_choice(request.choices[0], 256)
    assert _ms(request) == 1000 - 256


def test_what_was_prefilled_is_not_to_be_computed_again_and_has_in_it_what_was_kept() -> None:
    request = _running(1000)
    request.advance_prompt(request.choices[0], 600, 1000)
    request.restore_choice(request.choices[0], 256)  # told after the first pass
    assert request.progress == 0.6
    assert _ms(request) == 400


def test_who_has_a_token_has_its_prompt_behind_it() -> None:
    request = _running(1000)
    request.advance(request.choices[0], SequenceOutput(1, 0, [5], "x"))
    assert _ms(request) == 0


def test_a_prompt_with_several_answers_is_computed_once() -> None:
    dispatch = dispatched(prompt=[1] * 800, n=3)
    assert _ms(ActiveRequest(dispatch, OWNER, MAC, [1, 2, 3])) == 400


def test_what_is_only_counted_is_not_computed() -> None:
    assert _ms(_waiting(800, count_only=True)) == 0


def test_a_model_whose_speed_nobody_knows_counts_for_nothing() -> None:
    assert _ms(_waiting(800), speed=ModelPerformance()) == 0


# Several.


def test_it_is_the_engine_that_is_first_done_which_counts() -> None:
    requests = [_running(1000, engine=0), _running(2000, engine=0), _running(800, engine=1)]
    assert _ms(*requests, engines=2) == 400
    assert _ms(*requests[:2], engines=2) == 0


def test_those_who_wait_are_shared_out_evenly() -> None:
    requests = [_running(1000, engine=0), _running(2000, engine=1), _waiting(400), _waiting(800)]
    assert _ms(*requests, engines=2) == 500 + 600 / 2


def test_each_model_has_its_own_speed() -> None:
    demo = ModelId("demo")
    dispatch = dispatched(prompt=[1] * 800).model_copy(update={"model": demo})
    speeds = {TINY: _SPEED, demo: ModelPerformance(prefill_tokens_per_s=100)}
    requests = [_waiting(800), ActiveRequest(dispatch, OWNER, MAC, [1])]
    assert prefill_ms([0], requests, speeds) == 400 + 8000


def test_without_an_engine_that_runs_nothing_is_known() -> None:
    assert _ms(_waiting(800), engines=0) == 0
