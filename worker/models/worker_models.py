"""The models that this worker can serve, and their states."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shared.folders import cache_folder
from shared.ids import ModelId
from shared.messages.model_status import (
    ABILITIES,
    Batching,
    LoadPhase,
    ModelPerformance,
    ModelState,
    ModelStatus,
    is_encoder,
)
from shared.settings.models import ModelSettings
from shared.settings.tree import ClusterSettings
from worker.link.orders import LoadModel

_PART_OF_LOADING = 0.1
"""Share of the progress from a hub to being warm: reading from disk is much faster than a download.
"""


@dataclass(slots=True)
class WorkerModel:
    """One model of the catalogue.

    Attributes:
        progress: progress of `phase`, 0 to 1.
        error: why the model failed, or was not loaded the last time.
        size_bytes: size of its weights; 0 while unknown.
        abilities, warnings, batching, batching_reason, probe_ms: as far as is known; see
            `ModelStatus`.
        folder: the folder of its files, once known.
        adapter: the folder of its adapter, once known.
        fetched: whether its files were or are being downloaded for the current load.
        placed: indices of the engines that were ordered to load the model.
        engines: indices of the engines that have loaded it and generated its first token.
        load_ms: time of the last load, from the order to an engine to the first token.
        warm_at: when the model last became warm, by the monotonic clock.
        used_at: when the model last had a request, by the monotonic clock.
        failed_at: when the model failed, by the monotonic clock.
        transient: whether a retry after the failure may help.
    """

    id: ModelId
    source: ModelSettings
    state: ModelState = "available"
    phase: LoadPhase | None = None
    progress: float | None = None
    error: str | None = None
    size_bytes: int = 0
    max_context_tokens: int | None = None
    abilities: list[str] = field(default_factory=lambda: list(ABILITIES))
    warnings: list[str] = field(default_factory=list)
    batching: Batching | None = None
    batching_reason: str | None = None
    probe_ms: float | None = None
    folder: Path | None = None
    adapter: Path | None = None
    fetched: bool = False
    placed: set[int] = field(default_factory=set)
    engines: set[int] = field(default_factory=set)
    load_ms: float = 0.0
    warm_at: float = -math.inf
    used_at: float = -math.inf
    failed_at: float = -math.inf
    transient: bool = False
    pinned_by_order: bool | None = None

    @property
    def embeds(self) -> bool:
        """Whether it embeds or scores texts, and generates nothing; False before it was loaded."""
        return is_encoder(self.abilities)

    @property
    def pinned(self) -> bool:
        """Whether it is never evicted."""
        return self.source.pinned if self.pinned_by_order is None else self.pinned_by_order

    @property
    def held_bytes(self) -> int:
        """Bytes of its weights in all engines that hold or load the model."""
        return self.size_bytes * max(1, len(self.placed))

    @property
    def overall_progress(self) -> float | None:
        """Progress to the first token, 0 to 1, as shown to waiting clients."""
        if self.progress is None:
            return None
        if self.phase == "warming":
            return 1.0
        if not self.fetched:
            return self.progress
        if self.phase == "downloading":
            return (1 - _PART_OF_LOADING) * self.progress
        return 1 - _PART_OF_LOADING * (1 - self.progress)

    def status(
        self, *, active: int, queued: int, now: float, speed: ModelPerformance
    ) -> ModelStatus:
        idle = self.state == "warm" and not active and not queued
        return ModelStatus(
            id=self.id,
            state=self.state,
            phase=self.phase,
            progress=round(self.progress, 3) if self.progress is not None else None,
            error=self.error,
            priority=self.source.priority,
            pinned=self.pinned,
            size_bytes=self.size_bytes,
            active_requests=active,
            queued_requests=queued,
            idle_s=round(now - self.used_at, 1) if idle else None,
            max_context_tokens=self.max_context_tokens,
            abilities=self.abilities,
            warnings=self.warnings,
            batching=self.batching,
            batching_reason=self.batching_reason,
            probe_ms=self.probe_ms,
            speed=speed,
        )

    def load_order(self) -> LoadModel:
        """Return the order for an engine to load this model, whose `folder` must be known."""
        assert self.folder is not None
        return LoadModel(
            model=self.id,
            path=str(self.folder),
            max_context_tokens=self.source.max_context_tokens,
            trust_remote_code=self.source.trust_remote_code,
            tool_format=self.source.tool_format,
            reasoning_format=self.source.reasoning_format,
            template_values=self.source.chat_template_kwargs,
            adapter=str(self.adapter) if self.adapter is not None else None,
            verdicts_file=str(cache_folder() / "verdicts.json"),
            compares_embeddings=self.source.rerank == "embeddings",
        )


class ModelCatalogue:
    """The models of the settings, by id."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._models: dict[ModelId, WorkerModel] = {}
        self.add(settings)

    def add(self, settings: ClusterSettings) -> None:
        """Add the models of these settings; models that are in the catalogue stay unchanged."""
        for model in [*settings.pre_warmed_models, *settings.served_models]:
            if model not in self._models:
                source = settings.models.get(model) or ModelSettings(path=model)
                self._models[model] = WorkerModel(model, source)

    def __iter__(self) -> Iterator[WorkerModel]:
        return iter(self._models.values())

    def get(self, model: ModelId) -> WorkerModel | None:
        return self._models.get(model)

    def __getitem__(self, model: ModelId) -> WorkerModel:
        return self._models[model]
