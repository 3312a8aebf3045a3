"""The state and speed of a model on a worker."""

from collections.abc import Collection
from typing import Literal

from shared.codec import WireMessagePart
from shared.ids import ModelId
from shared.messages.base import Count, Priority

ModelState = Literal["available", "loading", "warm", "failed"]
LoadPhase = Literal["downloading", "loading", "warming"]
Batching = Literal["together", "alone"]
"""Whether the rows of a model decode in one batch, or one at a time."""
ABILITIES = ("tools", "schema", "reasoning", "continuation", "embedding", "rerank")
"""Abilities of a model beyond free text: tool calls, schemas, reasoning, continuation. A loaded
model that embeds texts or scores them for a query has nothing but `embedding`, `rerank` or both,
and generates nothing."""
_OF_ENCODERS = {"embedding", "rerank"}
TYPICAL_BYTES_PER_TOKEN = 4.0
"""For English; used until the tokens of a model have been measured."""
TYPICAL_ANSWER_TOKENS = 100.0
"""Assumed until a model's own answers have been measured."""
TYPICAL_ANSWER_WEIGHT = 4
"""The assumption counts as this many answers, so that one short answer does not dominate."""


def is_encoder(abilities: Collection[str] | None) -> bool:
    """Whether a loaded model with these abilities generates nothing."""
    return bool(abilities) and _OF_ENCODERS.issuperset(abilities or ())


class ModelPerformance(WireMessagePart):
    """The recently measured speed of a model on a worker; 0 if it was not measured yet.

    Attributes:
        prefill_tokens_per_s: prompt tokens per second of one engine.
        step_ms: duration of a decode step with one row more than now.
        rows: maximum number of rows that decode at once, in all engines that hold the model.
        bytes_per_token: of prompts that were sent as text, in UTF-8.
        prefill_share: share of prompt tokens that were not cached, 0 to 1.
        answer_tokens: mean length of an answer; includes a typical value until there are several.
        load_ms: duration of loading the model.
    """

    prefill_tokens_per_s: float = 0.0
    step_ms: float = 0.0
    rows: Count = 0
    bytes_per_token: float = 0.0
    prefill_share: float = 1.0
    answer_tokens: float = 0.0
    load_ms: float = 0.0


class ModelStatus(WireMessagePart):
    """One model on one worker.

    Attributes:
        progress: of `phase`, 0 to 1, while the model is loading.
        error: why the last load failed or was refused.
        size_bytes: of its weights; 0 if unknown.
        idle_s: since its last use; None while it is in use or not loaded.
        abilities: a subset of `ABILITIES`; before the first load, those that it may have. None if
            they are unknown to the worker.
        warnings: sentences about assumptions and omissions when it was loaded.
        batching: the batching verdict; None before it was loaded.
        batching_reason: why the verdict is `alone`.
        probe_ms: duration of the probe, if the verdict was not known before.
    """

    id: ModelId
    state: ModelState
    phase: LoadPhase | None = None
    progress: float | None = None
    error: str | None = None
    priority: Priority = "medium"
    pinned: bool = False
    size_bytes: Count = 0
    active_requests: Count = 0
    queued_requests: Count = 0
    idle_s: float | None = None
    max_context_tokens: int | None = None
    abilities: list[str] | None = None
    warnings: list[str] = []
    batching: Batching | None = None
    batching_reason: str | None = None
    probe_ms: float | None = None
    speed: ModelPerformance = ModelPerformance()
