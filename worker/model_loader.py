"""Having engines load models, and following how that goes."""

import logging
from collections.abc import Callable, Sequence

from shared.errors import ModelError
from shared.ids import ModelId
from worker.engine_process import EngineProcess
from worker.link.messages import Fact, ModelFailed, ModelLoaded, ModelLoading
from worker.model_catalogue import Model, ModelCatalogue

logger = logging.getLogger(__name__)

_MAX_LOADING_DEATHS = 2


class ModelLoader:
    """Moves the models of the catalogue from state to state.

    Args:
        engines: all of this worker; the list may still grow.
        on_failed: called with a model that cannot be loaded, and why.
    """

    def __init__(
        self,
        models: ModelCatalogue,
        engines: Sequence[EngineProcess],
        on_failed: Callable[[Model, str], None],
    ) -> None:
        self._models = models
        self._engines = engines
        self._on_failed = on_failed
        self._loading: dict[int, ModelId] = {}  # by engine

    def load(self, model: Model) -> None:
        """Have all engines load a model; its state tells how that goes."""
        model.state, model.progress, model.requested = "loading", 0.0, True
        self._order(model, self._engines)

    def on_engine_started(self, engine: EngineProcess) -> None:
        """Load on a restarted engine what was loaded before."""
        for model in self._models:
            if model.requested and model.state != "failed":
                self._order(model, [engine])

    def on_engine_lost(self, engine: EngineProcess, reason: str) -> None:
        """Note what is not loaded any more. A model whose loading kills engines must not take
        the others down with it."""
        for model in self._models:
            model.engines.discard(engine.index)
            if model.state == "warm" and not model.engines:
                model.state, model.progress = "loading", 0.0
        blamed = self._loading.pop(engine.index, None)
        if blamed is not None:
            model = self._models[blamed]
            model.deaths += 1
            if model.deaths >= _MAX_LOADING_DEATHS:
                self._fail(model, f"loading it ended the engine twice: {reason}")

    def on_fact(self, engine: EngineProcess, fact: Fact) -> None:
        """Take in what an engine reports of a model; other facts are ignored."""
        match fact:
            case ModelLoading():
                self._loading[engine.index] = fact.model
                self._models[fact.model].progress = round(fact.progress, 3)
            case ModelLoaded():
                self._loading.pop(engine.index, None)
                model = self._models[fact.model]
                model.engines.add(engine.index)
                model.state, model.progress, model.error = "warm", None, None
                model.max_context_tokens = fact.max_context_tokens
                logger.info("model %s is warm", fact.model, extra={"model": fact.model})
            case ModelFailed():
                self._loading.pop(engine.index, None)
                self._fail(self._models[fact.model], fact.message)
            case _:
                pass

    def _order(self, model: Model, engines: Sequence[EngineProcess]) -> None:
        try:
            order = model.load_order()
        except ModelError as error:
            self._fail(model, error.message)
            return
        for engine in engines:
            engine.send(order)

    def _fail(self, model: Model, message: str) -> None:
        model.state, model.progress, model.error = "failed", None, message
        logger.error("model %s failed: %s", model.id, message, extra={"model": model.id})
        self._on_failed(model, message)
