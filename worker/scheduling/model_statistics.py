"""How fast this worker serves each model, from which controllers predict TTFT."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from shared.ids import ModelId
from shared.messages.model_status import (
    TYPICAL_ANSWER_TOKENS,
    TYPICAL_ANSWER_WEIGHT,
    ModelPerformance,
)
from worker.engine_process.process import EngineProcess
from worker.models.worker_models import WorkerModel
from worker.requests.active_request import ActiveRequest

_DECAY = 0.9
"""Weight of all earlier observations, relative to the newest one."""


@dataclass(slots=True)
class _Ratio:
    """The ratio of two decaying sums: long prompts count most, as they do for the engine."""

    part: float = 0.0
    whole: float = 0.0

    def add(self, part: float, whole: float) -> None:
        self.part = _DECAY * self.part + part
        self.whole = _DECAY * self.whole + whole

    def value(self, unknown: float = 0.0) -> float:
        return self.part / self.whole if self.whole else unknown


@dataclass(slots=True)
class _Observed:
    """Observations of the requests of one model; the last prefill speed is retained while no
    engine holds the model."""

    bytes_per_token: _Ratio = field(default_factory=_Ratio)
    prefill_share: _Ratio = field(default_factory=_Ratio)
    answer_tokens: _Ratio = field(
        default_factory=lambda: _Ratio(
            TYPICAL_ANSWER_WEIGHT * TYPICAL_ANSWER_TOKENS, TYPICAL_ANSWER_WEIGHT
        )
    )
    prefill_tokens_per_s: float = 0.0


class ModelStatistics:
    """Sizes are observed from requests; speeds are measured by the engines.

    Args:
        engines: all engines of this worker; the list may still grow.
    """

    def __init__(self, engines: Sequence[EngineProcess]) -> None:
        self._engines = engines
        self._observed: defaultdict[ModelId, _Observed] = defaultdict(_Observed)

    def prompt_computed(
        self, model: ModelId, *, text_bytes: int, tokens: int, cached_tokens: int
    ) -> None:
        """Record a prompt; `text_bytes` is 0 if the prompt was received as token ids."""
        observed = self._observed[model]
        observed.prefill_share.add(tokens - cached_tokens, tokens)
        if text_bytes:
            observed.bytes_per_token.add(text_bytes, tokens)

    def answered(self, model: ModelId, tokens: int) -> None:
        """Record the length of an answer that was not cancelled."""
        self._observed[model].answer_tokens.add(tokens, 1)

    def observed(self, model: ModelId) -> ModelPerformance:
        """Return the typical sizes of the requests of a model, without its speeds."""
        observed = self._observed[model]
        return ModelPerformance(
            bytes_per_token=round(observed.bytes_per_token.value(), 2),
            prefill_share=round(observed.prefill_share.value(unknown=1.0), 3),
            answer_tokens=round(observed.answer_tokens.value(), 1),
        )

    def of(self, model: WorkerModel) -> ModelPerformance:
        """Return the sizes and speeds of a model as of now."""
        observed = self._observed[model.id]
        batches = [
            batch
            for engine in self._engines
            if engine.index in model.engines
            for batch in engine.measured.batches
            if batch.model == model.id
        ]
        if batches:
            observed.prefill_tokens_per_s = fmean(batch.prefill_tokens_per_s for batch in batches)
        steps_ms = [batch.next_step_ms for batch in batches if batch.next_step_ms > 0]
        measured = {
            "prefill_tokens_per_s": round(observed.prefill_tokens_per_s, 1),
            "step_ms": round(fmean(steps_ms), 1) if steps_ms else 0.0,
            "rows": sum(batch.limit for batch in batches),
            "load_ms": round(model.load_ms, 1),
        }
        return self.observed(model.id).model_copy(update=measured)


def prefill_ms(
    engines: Collection[int],
    requests: Iterable[ActiveRequest],
    speeds: Mapping[ModelId, ModelPerformance],
) -> float:
    """Return the milliseconds until the first engine has prefilled its prompts and its share of the
    queued ones. Models whose speed is unknown count 0.

    Args:
        engines: indices of the running engines.
    """
    own_ms = dict.fromkeys(engines, 0.0)
    waiting_ms = 0.0
    for request in requests:
        speed = speeds[request.model]
        if request.started or not request.generates or not speed.prefill_tokens_per_s:
            continue
        left_ms = 1000 * request.expected_left_tokens(speed) / speed.prefill_tokens_per_s
        if request.engine is None:
            waiting_ms += left_ms
        elif request.engine in own_ms:
            own_ms[request.engine] += left_ms
    return min(own_ms.values()) + waiting_ms / len(own_ms) if own_ms else 0.0
