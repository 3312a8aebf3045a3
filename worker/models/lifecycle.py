"""Which models are loaded: on demand, by order, until they are idle for too long or others need
the room."""

import time
from collections.abc import Callable, Collection, Sequence

from shared.changes import Changes
from shared.errors import ClusterError, RequestError, Unavailable
from shared.ids import ModelId
from shared.settings import ClusterSettings
from worker.engine_process.process import EngineProcess
from worker.memory.guard import MemoryGuard
from worker.models.catalogue import Model, ModelCatalogue
from worker.models.eviction import expired, idle_models
from worker.models.loader import ModelLoader
from worker.models.memory_capacity import ModelMemory


class ModelLifecycle:
    """Args:
        in_use: the models that requests wait for or run on.
        on_failed: called with a model that was not loaded, and the error for its requests.

    Attributes:
        catalogue: all models this worker knows.
        loader: moves them from state to state.
        on_use: called with each model that a request is for.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        engines: Sequence[EngineProcess],
        guard: MemoryGuard,
        changes: Changes,
        *,
        in_use: Callable[[], Collection[ModelId]],
        on_failed: Callable[[Model, ClusterError], None],
    ) -> None:
        self._settings = settings.worker.model_loading
        self._in_use = in_use
        self.catalogue = ModelCatalogue(settings)
        self.on_use: list[Callable[[ModelId], None]] = []
        self._room = ModelMemory(
            guard,
            engines=engines,
            may_be_fewer=settings.worker.engines.count == "auto",
            eviction=self._settings.eviction,
            idle=self._idle,
            unload=self._unload,
        )
        self.loader = ModelLoader(
            self._settings,
            self.catalogue,
            engines,
            self._room,
            changes,
            stall_limit_s=settings.worker.pre_warming.timeout_per_model_ms / 1000,
            on_failed=on_failed,
        )

    def configure(self, settings: ClusterSettings) -> None:
        """Go by other settings, also with models that were not known; none goes."""
        self._settings = settings.worker.model_loading
        self.catalogue.add(settings)
        self._room.eviction = self._settings.eviction
        self.loader.settings = self._settings

    def check_served(self, model_id: ModelId) -> None:
        """Whether a request for this model may come in.

        Raises:
            Unavailable: it is not here, failed, or is not loaded for requests.
        """
        model = self.catalogue.get(model_id)
        if model is None:
            raise Unavailable(f"no model {model_id} here", code="model_unavailable")
        if model.state == "failed":
            raise Unavailable(f"{model_id}: {model.error}", code="model_unavailable")
        if model.state == "available" and not self._settings.on_demand:
            message = f"{model_id} is not loaded, and loading on demand is off"
            raise Unavailable(message, code="model_unavailable")

    def want(self, model_id: ModelId) -> Model:
        """A request is for this model, which was checked: load it where that is needed.

        Raises:
            Unavailable: it cannot be loaded now.
        """
        model = self.catalogue[model_id]
        if model.state == "available":
            self._load(model)
        model.used_at = time.monotonic()
        for told in self.on_use:
            told(model_id)
        return model

    def load(self, model_id: ModelId) -> Model:
        """Load a model because somebody says so; one that failed is tried again.

        Raises:
            RequestError: it is not here.
            Unavailable: there is no room.
        """
        model = self.check_known(model_id)
        if model.state in ("available", "failed"):
            self._load(model)
        return model

    def unload(self, model_id: ModelId) -> Model:
        """Unload a model because somebody says so.

        Raises:
            RequestError: it is not here.
            Unavailable: requests use it.
        """
        model = self.check_known(model_id)
        if model_id in self._in_use():
            message = f"{model_id} is in use; unload it when its requests have ended"
            raise Unavailable(message, code="model_in_use")
        if model.state in ("warm", "loading"):
            self._unload(model)
        return model

    def evict_one(self) -> bool:
        """Have the next idle model go; False when there is none, or eviction is off."""
        idle = self._idle() if self._settings.eviction else []
        if idle:
            self._unload(idle[0])
        return bool(idle)

    def tick(self) -> None:
        """What was idle for too long goes; call it a few times a second."""
        for model in expired(self._idle(), time.monotonic()):
            self._unload(model)
        self.loader.tick()

    def has_room_for(self, model: Model) -> bool:
        """Whether a model is known to fit without another having to go."""
        return model.size_bytes > 0 and self._room.fits(model)

    def check_known(self, model_id: ModelId) -> Model:
        """The model of that name.

        Raises:
            RequestError: it is not here; says which are.
        """
        model = self.catalogue.get(model_id)
        if model is None:
            known = ", ".join(model.id for model in self.catalogue)
            message = f"no model {model_id!r} here; there are: {known}"
            raise RequestError(message, code="unknown_model", param="model")
        return model

    def _load(self, model: Model) -> None:
        try:
            self._room.check(model)
        except Unavailable as error:
            model.error = error.message
            raise
        self.loader.load(model)

    def _unload(self, model: Model) -> None:
        self.loader.unload(model)

    def _idle(self) -> list[Model]:
        return idle_models(self.catalogue, self._in_use())
