"""Having engines load models, from finding their files to the first token."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from shared.changes import Changes
from shared.errors import ClusterError, ModelError, Unavailable
from shared.ids import ModelId
from shared.messages.events import ModelState
from shared.settings.worker import ModelLoadingSettings
from worker.engine_process.process import EngineProcess
from worker.link.facts import Fact, ModelFailed, ModelLoaded, SequenceRejected, StepCompleted
from worker.link.facts import ModelLoading as ModelIsLoading
from worker.link.orders import UnloadModel
from worker.models.catalogue import Model, ModelCatalogue
from worker.models.crash_history import CrashHistory
from worker.models.deferred_loads import DeferredLoads
from worker.models.download import AskPeers, download
from worker.models.files import inspect
from worker.models.memory_capacity import ModelMemory
from worker.models.smoke_tests import SmokeTests
from worker.models.sources import find_files, local_folder, with_base

logger = logging.getLogger(__name__)

_TRY_AGAIN_S = 30.0


class ModelLoader:
    """Moves the models of the catalogue from state to state.

    Args:
        engines: all of this worker; the list may still grow.
        changes: notified when the state of a model changed.
        stall_limit_s: a download that makes no progress for so long is given up.
        on_failed: called with a model that was not loaded, and the error for its requests.

    Attributes:
        ask_peers: finds what other workers have of a model; None where nobody is asked.
        deaths: how often engines ended over each model.
    """

    def __init__(
        self,
        settings: ModelLoadingSettings,
        models: ModelCatalogue,
        engines: Sequence[EngineProcess],
        room: ModelMemory,
        changes: Changes,
        *,
        stall_limit_s: float,
        on_failed: Callable[[Model, ClusterError], None],
    ) -> None:
        self.settings = settings
        self._models = models
        self._engines = engines
        self._room = room
        self._changes = changes
        self._stall_limit_s = stall_limit_s
        self.ask_peers: AskPeers | None = None
        self._on_failed = on_failed
        self._ordered: asyncio.Queue[Model] = asyncio.Queue()
        self._told_at: dict[tuple[int, ModelId], float] = {}  # when an engine was to load a model
        self._loaded: defaultdict[ModelId, set[int]] = defaultdict(set)  # by which engines
        self._read: dict[tuple[int, ModelId], float] = {}  # how far an engine is with a model
        self._trials = SmokeTests()
        self._held_back = DeferredLoads()
        self.deaths = CrashHistory()

    async def run(self) -> None:
        """Find files and give orders, for each model in a task of its own, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._learn_sizes())
            while True:
                tasks.create_task(self._find_and_order(await self._ordered.get()))

    # Orders.

    def load(self, model: Model) -> None:
        """Have engines load a model; its state tells how that goes. One that failed is tried anew:
        what it did to engines before is forgiven."""
        if model.state in ("loading", "warm"):
            return
        if model.state == "failed":
            self.deaths.forgive(model.id)
        model.state, model.phase, model.progress, model.error = "loading", "loading", 0.0, None
        model.fetched = model.transient = False
        self._ordered.put_nowait(model)

    def unload(self, model: Model) -> None:
        """Have all engines forget a model that nobody uses."""
        logger.info("model %s is unloaded", model.id, extra={"model": model.id})
        model.state, model.phase, model.progress = "available", None, None
        model.placed.clear()
        self._room.taken(model)
        model.engines.clear()
        for engine in self._engines:
            engine.send(UnloadModel(model.id))
        self._changes.notify()

    def tick(self) -> None:
        """What failed for a reason that may pass may be asked for again after a while; what may
        have ended an engine is loaded once that holds all others. Call it a few times a second."""
        self._order_held_back()
        now = time.monotonic()
        for model in self._models:
            if model.state == "failed" and model.transient and now - model.failed_at > _TRY_AGAIN_S:
                model.state = "available"

    # Files.

    async def _learn_sizes(self) -> None:
        """Know the sizes of the models on this machine before anybody asks for one."""
        for model in self._models:
            try:
                source = with_base(model.id, model.source)
                if (folder := local_folder(model.id, source)) is not None:
                    await self._inspect(model, folder)
            except ModelError:
                pass  # told when it is to be loaded

    async def _inspect(self, model: Model, folder: Path) -> None:
        trust = model.source.trust_remote_code
        files = await asyncio.to_thread(inspect, folder, trust_remote_code=trust)
        model.folder, model.size_bytes = files.folder, files.weight_bytes

    async def _find_and_order(self, model: Model) -> None:
        try:
            found = await find_files(model.id, model.source, partial(self._download, model))
            model.adapter = found.adapter
            await self._inspect(model, found.folder)
            copies = await self._room.make_for(model)
        except Unavailable as error:
            self._give_up(model, error.message, "available")
            self._on_failed(model, error)
            return
        except ModelError as error:
            model.transient = model.fetched
            self._fail(model, error.message)
            return
        if model.state != "loading":  # it was unloaded meanwhile
            self._room.taken(model)
        else:
            model.phase, model.progress = "loading", 0.0
            chosen = sorted(self._engines, key=self._fitness)[:copies]
            model.placed = {engine.index for engine in chosen}
            self._loaded[model.id].clear()
            self._order(model, chosen)

    def _fitness(self, engine: EngineProcess) -> tuple[bool, int]:
        """To hold one more model: those that run first, then those that hold least."""
        held = sum(model.size_bytes for model in self._placed_on(engine))
        return engine.state == "failed", held

    async def _download(self, model: Model, repo: str, revision: str | None) -> Path:
        model.fetched = True
        model.phase, model.progress = "downloading", 0.0

        def on_size(total_bytes: int, missing_bytes: int) -> None:
            self._room.check_ever(model, total_bytes)
            if missing_bytes and not self.settings.downloads:
                raise ModelError(
                    f"{repo} is not on this machine, and downloads are switched off "
                    "(worker.model_loading.downloads)"
                )

        def report(progress: float) -> None:
            model.progress = progress
            self._changes.notify()

        return await download(
            repo,
            revision,
            trust_remote_code=model.source.trust_remote_code,
            stall_limit_s=self._stall_limit_s,
            on_size=on_size,
            report=report,
            ask_peers=self.ask_peers,
        )

    # Engines.

    def on_engine_started(self, engine: EngineProcess) -> None:
        """Load on a restarted engine what was loaded before; what may have ended it only when all
        others are warm, so that their streams go on until then."""
        suspects = [model.id for model in self._models if self.deaths.count(model.id)]
        for model in self._held_back.begin(engine.index, self._placed_on(engine), suspects):
            self._order(model, [engine])
        self._order_held_back()

    def _order_held_back(self) -> None:
        for engine in self._engines:
            for model in self._held_back.release(engine.index, self._placed_on(engine)):
                self._order(model, [engine])

    def _placed_on(self, engine: EngineProcess) -> list[Model]:
        return [model for model in self._models if engine.index in model.placed]

    def on_engine_lost(self, engine: EngineProcess) -> None:
        """Note what is not loaded any more."""
        for model in self._models:
            model.engines.discard(engine.index)
            self._read.pop((engine.index, model.id), None)
            if model.state == "warm" and not model.engines:
                model.state, model.phase, model.progress = "loading", "loading", 0.0
        self._trials.lost(engine)
        self._held_back.lost(engine.index)

    def give_up(self, model: Model, message: str) -> None:
        """A model is not to be tried again, until somebody orders it; its requests hear why."""
        if model.state != "failed":
            model.transient = False
            self._fail(model, message)

    def on_fact(self, engine: EngineProcess, fact: Fact) -> None:
        """Take in what an engine reports of a model; other facts are ignored."""
        match fact:
            case ModelIsLoading():
                self._read[engine.index, fact.model] = fact.progress
                model = self._models[fact.model]
                if model.phase == "loading":
                    model.progress = min(p for (_, m), p in self._read.items() if m == fact.model)
            case ModelLoaded():
                self._on_loaded(engine, self._models[fact.model], fact)
            case ModelFailed():
                self._read.pop((engine.index, fact.model), None)
                self._fail_in(engine, self._models[fact.model], fact.message)
            case StepCompleted() if self._trials:
                for output in fact.outputs:
                    if output.finish_reason and (trial := self._trials.take(output.sequence)):
                        self._on_first_token(*trial)
            case SequenceRejected():
                trial = self._trials.take(fact.sequence)
                if trial is not None and engine.index in trial.model.placed:
                    self._fail(trial.model, f"it generates nothing: {fact.message}")
            case _:
                pass

    def _order(self, model: Model, engines: Sequence[EngineProcess]) -> None:
        for engine in engines:
            engine.send(model.load_order())
            self._told_at[engine.index, model.id] = time.monotonic()

    def _on_loaded(self, engine: EngineProcess, model: Model, fact: ModelLoaded) -> None:
        """The weights are there: have it generate a few tokens, as requests will."""
        self._loaded[model.id].add(engine.index)
        if self._loaded[model.id] >= model.placed:
            self._room.taken(model)
        model.max_context_tokens = fact.max_context_tokens
        model.abilities = fact.abilities
        model.warnings = fact.warnings
        model.batching, model.batching_reason = fact.batching, fact.batching_reason
        model.probe_ms = fact.probe_ms
        if model.state == "loading":
            model.phase, model.progress = "warming", 0.0
        self._trials.begin(engine, model)

    def _on_first_token(self, engine: EngineProcess, model: Model) -> None:
        self._read.pop((engine.index, model.id), None)
        self.deaths.loaded(model.id)
        if engine.index not in model.placed:  # unloaded meanwhile
            return
        model.engines.add(engine.index)
        model.state, model.phase, model.progress, model.error = "warm", None, None, None
        model.warm_at = time.monotonic()
        model.load_ms = 1000 * (model.warm_at - self._told_at[engine.index, model.id])
        model.used_at = max(model.used_at, model.warm_at)
        logger.info("model %s is warm", model.id, extra={"model": model.id})

    def _fail_in(self, engine: EngineProcess, model: Model, message: str) -> None:
        """A model could not be loaded into an engine: where others are to hold it, that one goes
        without."""
        if not model.placed - {engine.index}:
            self._fail(model, message)
            return
        logger.error(
            "model %s: engine %d goes without it: %s", model.id, engine.index, message,
            extra={"model": model.id},
        )  # fmt: skip
        model.placed.discard(engine.index)
        model.engines.discard(engine.index)
        engine.send(UnloadModel(model.id))

    def _fail(self, model: Model, message: str) -> None:
        if model.placed:
            for engine in self._engines:
                engine.send(UnloadModel(model.id))
        self._give_up(model, message, "failed")
        named = message if model.id in message else f"{model.id}: {message}"
        self._on_failed(model, Unavailable(named, code="model_unavailable"))

    def _give_up(self, model: Model, message: str, state: ModelState) -> None:
        model.state, model.phase, model.progress, model.error = state, None, None, message
        model.failed_at = time.monotonic()
        model.placed.clear()
        self._room.taken(model)
        model.engines.clear()
        logger.error("model %s: %s", model.id, message, extra={"model": model.id})
        self._changes.notify()
