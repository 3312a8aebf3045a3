"""The order in which a restarted engine reloads its models."""

from collections.abc import Collection, Sequence

from shared.ids import ModelId
from worker.models.catalogue import WorkerModel


class SuspectModelReloads:
    """Models that may have crashed an engine: the engine reloads them after all its other models,
    so that the streams of those continue until then."""

    def __init__(self) -> None:
        self._models: dict[int, set[ModelId]] = {}  # by engine

    def begin(
        self, engine: int, placed: Sequence[WorkerModel], suspects: Collection[ModelId]
    ) -> list[WorkerModel]:
        """Record a restarted engine; returns which of its `placed` models to load first."""
        deferred = self._models[engine] = {model.id for model in placed if model.id in suspects}
        return [model for model in placed if model.id not in deferred]

    def release(self, engine: int, placed: Sequence[WorkerModel]) -> list[WorkerModel]:
        """Return the deferred models once all others are warm; empty before."""
        deferred = self._models.get(engine, set())
        if not all(model.id in deferred or engine in model.engines for model in placed):
            return []
        self._models.pop(engine, None)
        return [model for model in placed if model.id in deferred]

    def lost(self, engine: int) -> None:
        """Forget the deferred models of an engine that ended."""
        self._models.pop(engine, None)
