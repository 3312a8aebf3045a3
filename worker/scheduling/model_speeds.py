"""How fast this worker serves each model: what controllers need to predict a first token."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from shared.ids import ModelId
from shared.messages.model_status import TYPICAL_ANSWER_TOKENS, TYPICAL_ANSWER_WEIGHT, ModelSpeed
from worker.engine_process.process import EngineProcess
from worker.models.catalogue import Model

_WEIGHT_OF_OLDER = 0.9
"""Of what was seen before, beside what is seen now."""


@dataclass(slots=True)
class _Ratio:
    """Of two moving sums. So of prompts the long ones count most, as they do for the engine."""

    part: float = 0.0
    whole: float = 0.0

    def add(self, part: float, whole: float) -> None:
        self.part = _WEIGHT_OF_OLDER * self.part + part
        self.whole = _WEIGHT_OF_OLDER * self.whole + whole

    def value(self, unknown: float = 0.0) -> float:
        return self.part / self.whole if self.whole else unknown


@dataclass(slots=True)
class _Seen:
    """Of the requests of one model; the prefill speed is kept for when no engine holds it."""

    bytes_per_token: _Ratio = field(default_factory=_Ratio)
    prefill_share: _Ratio = field(default_factory=_Ratio)
    answer_tokens: _Ratio = field(
        default_factory=lambda: _Ratio(
            TYPICAL_ANSWER_WEIGHT * TYPICAL_ANSWER_TOKENS, TYPICAL_ANSWER_WEIGHT
        )
    )
    prefill_tokens_per_s: float = 0.0


class ModelSpeeds:
    """Learns from requests; the rest the engines have measured.

    Args:
        engines: all of this worker; the list may still grow.
    """

    def __init__(self, engines: Sequence[EngineProcess]) -> None:
        self._engines = engines
        self._seen: defaultdict[ModelId, _Seen] = defaultdict(_Seen)

    def prompt_computed(
        self, model: ModelId, *, text_bytes: int, tokens: int, cached_tokens: int
    ) -> None:
        """`text_bytes` is 0 where the prompt came as token ids."""
        seen = self._seen[model]
        seen.prefill_share.add(tokens - cached_tokens, tokens)
        if text_bytes:
            seen.bytes_per_token.add(text_bytes, tokens)

    def answered(self, model: ModelId, tokens: int) -> None:
        """An answer came to its own end."""
        self._seen[model].answer_tokens.add(tokens, 1)

    def seen(self, model: ModelId) -> ModelSpeed:
        """What its requests are like; without how fast it is."""
        seen = self._seen[model]
        return ModelSpeed(
            bytes_per_token=round(seen.bytes_per_token.value(), 2),
            prefill_share=round(seen.prefill_share.value(unknown=1.0), 3),
            answer_tokens=round(seen.answer_tokens.value(), 1),
        )

    def of(self, model: Model) -> ModelSpeed:
        """As it is now."""
        seen = self._seen[model.id]
        batches = [
            batch
            for engine in self._engines
            if engine.index in model.engines
            for batch in engine.measured.batches
            if batch.model == model.id
        ]
        if batches:
            seen.prefill_tokens_per_s = fmean(batch.prefill_tokens_per_s for batch in batches)
        steps_ms = [batch.next_step_ms for batch in batches if batch.next_step_ms > 0]
        measured = {
            "prefill_tokens_per_s": round(seen.prefill_tokens_per_s, 1),
            "step_ms": round(fmean(steps_ms), 1) if steps_ms else 0.0,
            "rows": sum(batch.limit for batch in batches),
            "load_ms": round(model.load_ms, 1),
        }
        return self.seen(model.id).model_copy(update=measured)
