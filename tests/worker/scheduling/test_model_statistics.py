"""How fast a worker serves a model, from what its engines measured and its requests were."""

import pytest

from shared.ids import ModelId
from shared.messages.model_status import ModelPerformance
from shared.settings.models import ModelSettings
from tests.worker.recording_engine import RecordingEngine
from tests.worker.values import TINY
from worker.models.worker_models import WorkerModel
from worker.scheduling.model_statistics import ModelStatistics

_DEMO = ModelId("demo")


class Serving:
    """A worker with some engines that hold a model."""

    def __init__(self, engines: int = 1) -> None:
        self.engines = [RecordingEngine(index) for index in range(engines)]
        self.model = WorkerModel(
            TINY, ModelSettings(path="/models/tiny"), engines=set(range(engines))
        )
        self.speeds = ModelStatistics(self.engines)

    @property
    def now(self) -> ModelPerformance:
        return self.speeds.of(self.model)

    def prompts(self, *sizes: tuple[int, int, int]) -> None:
        """Each with its bytes, its tokens, and those of them that were kept."""
        for text_bytes, tokens, cached_tokens in sizes:
            self.speeds.prompt_computed(
                TINY, text_bytes=text_bytes, tokens=tokens, cached_tokens=cached_tokens
            )


def test_of_what_was_never_measured_nothing_is_known() -> None:
    assert Serving().now == ModelPerformance(answer_tokens=100)


# What engines measured.


def test_rows_are_those_of_all_engines_and_speeds_their_means() -> None:
    worker = Serving(2)
    worker.engines[0].measures(limits={_DEMO: 1, TINY: 8}, step_ms=10, prefill_tokens_per_s=1000)
    worker.engines[1].measures(limits={TINY: 4}, step_ms=30, prefill_tokens_per_s=500)
    assert (worker.now.rows, worker.now.step_ms) == (12, 20)
    assert worker.now.prefill_tokens_per_s == 750


def test_an_engine_that_took_no_step_says_nothing_of_steps() -> None:
    worker = Serving(2)
    worker.engines[0].measures(limits={TINY: 8}, step_ms=10)
    worker.engines[1].measures(limits={TINY: 8}, step_ms=0)
    assert (worker.now.rows, worker.now.step_ms) == (16, 10)


def test_an_engine_that_does_not_hold_the_model_yet_does_not_count() -> None:
    worker = Serving(2)
    for engine in worker.engines:
        engine.measures(limits={TINY: 8}, prefill_tokens_per_s=100)
    worker.model.engines.discard(1)
    assert worker.now.rows == 8


def test_the_speed_of_prefill_is_still_known_when_the_model_was_unloaded() -> None:
    worker = Serving()
    worker.engines[0].measures(limits={TINY: 8}, step_ms=10, prefill_tokens_per_s=1000)
    assert worker.now.rows == 8
    worker.engines[0].measures()
    worker.model.engines.clear()
    assert (worker.now.rows, worker.now.step_ms) == (0, 0)
    assert worker.now.prefill_tokens_per_s == 1000


def test_the_last_load_took_as_long_as_the_model_says() -> None:
    worker = Serving()
    worker.model.load_ms = 1234.56
    assert worker.now.load_ms == 1234.6


# What requests were.


def test_the_first_prompt_tells_at_once_how_large_tokens_are_and_how_much_is_kept() -> None:
    worker = Serving()
    worker.prompts((400, 100, 25))
    assert worker.now.bytes_per_token == 4
    assert worker.now.prefill_share == 0.75


def test_a_prompt_of_token_ids_tells_nothing_of_bytes() -> None:
    worker = Serving()
    worker.prompts((400, 100, 0), (0, 300, 300))
    assert worker.now.bytes_per_token == 4
    assert worker.now.prefill_share < 0.3


def test_long_prompts_count_more_than_short_ones_with_all_their_template() -> None:
    worker = Serving()
    worker.prompts((40_000, 10_000, 0), (2, 30, 0))
    assert 3.9 < worker.now.bytes_per_token < 4


def test_what_was_long_ago_is_forgotten() -> None:
    worker = Serving()
    worker.prompts(*[(400, 100, 0)] * 5, *[(200, 100, 100)] * 50)
    assert worker.now.bytes_per_token == pytest.approx(2, abs=0.02)
    assert worker.now.prefill_share < 0.01


def test_an_answer_is_as_long_as_the_last_ones() -> None:
    worker = Serving()
    assert worker.now.answer_tokens == 100  # a guess
    worker.speeds.answered(TINY, 4)
    assert worker.now.answer_tokens == round((0.9 * 400 + 4) / 4.6, 1)  # the guess counts as four
    worker.speeds.answered(TINY, 200)
    assert worker.now.answer_tokens == round((0.81 * 400 + 0.9 * 4 + 200) / 5.14, 1)
    for _ in range(100):
        worker.speeds.answered(TINY, 10)
    assert worker.now.answer_tokens == 10


def test_models_are_told_apart() -> None:
    worker = Serving()
    worker.prompts((400, 100, 50))
    worker.speeds.answered(TINY, 100)
    other = WorkerModel(_DEMO, ModelSettings(path="/models/demo"))
    assert worker.speeds.of(other) == ModelPerformance(answer_tokens=100)
