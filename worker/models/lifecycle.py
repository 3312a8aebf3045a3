"""Loading of models on demand and by order, and unloading of idle models."""

import time
from collections.abc import Callable, Collection, Sequence

from shared.change_notifier import ChangeNotifier
from shared.errors import ClusterError, RequestError, Unavailable
from shared.ids import ModelId
from shared.settings import ClusterSettings
from worker.engine_process.process import EngineProcess
from worker.memory.guard import MemoryGuard
from worker.models.eviction import expired, idle_models
from worker.models.loader import WorkerModelLoader
from worker.models.memory_capacity import ModelMemoryManager
from worker.models.worker_models import ModelCatalogue, WorkerModel


class ModelLifecycle:
    """Decides which models of the catalogue are loaded, and unloads idle ones.

    Args:
        in_use: returns the models for which requests wait or run.
        on_failed: called with a model that could not be loaded, and the error for its requests.

    Attributes:
        catalogue: all models of this worker.
        loader: changes their states.
        on_use: called with the model of each request.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        engines: Sequence[EngineProcess],
        guard: MemoryGuard,
        changes: ChangeNotifier,
        *,
        in_use: Callable[[], Collection[ModelId]],
        on_failed: Callable[[WorkerModel, ClusterError], None],
    ) -> None:
        self._settings = settings.worker.model_loading
        self._in_use = in_use
        self.catalogue = ModelCatalogue(settings)
        self.on_use: list[Callable[[ModelId], None]] = []
        self._memory = ModelMemoryManager(
            guard,
            engines=engines,
            allow_fewer_copies=settings.worker.engines.count == "auto",
            eviction=self._settings.eviction,
            idle=self._idle,
            unload=self._unload,
        )
        self.loader = WorkerModelLoader(
            self._settings,
            self.catalogue,
            engines,
            self._memory,
            changes,
            stall_limit_s=settings.worker.pre_warming.timeout_per_model_ms / 1000,
            on_failed=on_failed,
        )

    def configure(self, settings: ClusterSettings) -> None:
        """Apply changed settings. New models are added to the catalogue, none is removed."""
        self._settings = settings.worker.model_loading
        self.catalogue.add(settings)
        self._memory.eviction = self._settings.eviction
        self.loader.settings = self._settings

    def check_served(self, model_id: ModelId) -> None:
        """Check that a request for this model can be accepted.

        Raises:
            Unavailable: the model is unknown, has failed, or is not loaded and may not be loaded
                on demand.
        """
        model = self.catalogue.get(model_id)
        if model is None:
            raise Unavailable(f"this worker has no model {model_id}", code="model_unavailable")
        if model.state == "failed":
            raise Unavailable(f"{model_id}: {model.error}", code="model_unavailable")
        if model.state == "available" and not self._settings.on_demand:
            message = f"{model_id} is not loaded, and loading on demand is off"
            raise Unavailable(message, code="model_unavailable")

    def load_on_demand(self, model_id: ModelId) -> WorkerModel:
        """Record a request for this model, and load the model if necessary. The caller has run
        `check_served`.

        Raises:
            Unavailable: the model cannot be loaded now.
        """
        model = self.catalogue[model_id]
        if model.state == "available":
            self._load(model)
        model.used_at = time.monotonic()
        for callback in self.on_use:
            callback(model_id)
        return model

    def load(self, model_id: ModelId) -> WorkerModel:
        """Load a model by order; a failed model is tried again, and its crash history is dropped.

        Raises:
            RequestError: the model is unknown.
            Unavailable: there is not enough memory.
        """
        model = self.check_known(model_id)
        self.loader.crash_history.reset(model.id)
        if model.state in ("available", "failed"):
            self._load(model)
        return model

    def unload(self, model_id: ModelId) -> WorkerModel:
        """Unload a model by order.

        Raises:
            RequestError: the model is unknown.
            Unavailable: the model has requests.
        """
        model = self.check_known(model_id)
        if model_id in self._in_use():
            message = f"{model_id} is in use; unload it when its requests have ended"
            raise Unavailable(message, code="model_in_use")
        if model.state in ("warm", "loading"):
            self._unload(model)
        return model

    def pin(self, model_id: ModelId, *, pinned: bool) -> None:
        """Protect a model from eviction by order, or end the protection.

        Raises:
            RequestError: the model is unknown.
        """
        self.check_known(model_id).pinned_by_order = pinned

    def evict_one(self) -> bool:
        """Unload the next idle model; returns False if there is none, or eviction is off."""
        idle = self._idle() if self._settings.eviction else []
        if idle:
            self._unload(idle[0])
        return bool(idle)

    def tick(self) -> None:
        """Unload models that were idle for their `ttl_s`. Call a few times a second."""
        for model in expired(self._idle(), time.monotonic()):
            self._unload(model)
        self.loader.tick()

    def fits(self, model: WorkerModel) -> bool:
        """Whether a model of known size fits into memory without evicting another."""
        return model.size_bytes > 0 and self._memory.fits(model)

    def check_known(self, model_id: ModelId) -> WorkerModel:
        """Return a model of the catalogue.

        Raises:
            RequestError: the model is unknown; the message lists the models.
        """
        model = self.catalogue.get(model_id)
        if model is None:
            known = ", ".join(model.id for model in self.catalogue)
            message = f"this worker has no model {model_id!r}; its models are: {known}"
            raise RequestError(message, code="unknown_model", param="model")
        return model

    def _load(self, model: WorkerModel) -> None:
        try:
            self._memory.check(model)
        except Unavailable as error:
            model.error = error.message
            raise
        self.loader.load(model)

    def _unload(self, model: WorkerModel) -> None:
        self.loader.unload(model)

    def _idle(self) -> list[WorkerModel]:
        return idle_models(self.catalogue, self._in_use())
