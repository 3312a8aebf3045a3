"""Loading of models into engines, from finding their files to the first token."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from shared.change_notifier import ChangeNotifier
from shared.errors import ClusterError, ModelError, Unavailable
from shared.ids import ModelId
from shared.messages.model_status import ModelState
from shared.settings.worker import ModelLoadingSettings
from shared.tasks import Tasks
from worker.engine_process.process import EngineProcess
from worker.link.facts import (
    EngineStarted,
    Fact,
    ModelFailed,
    ModelLoaded,
    SequenceRejected,
    StepCompleted,
)
from worker.link.facts import ModelLoading as ModelIsLoading
from worker.link.orders import UnloadModel
from worker.models.crash_history import CrashHistory
from worker.models.download import AskPeers, download
from worker.models.files import inspect
from worker.models.memory_capacity import ModelMemoryManager
from worker.models.smoke_tests import ModelSmokeTests
from worker.models.sources import find_files, local_folder, with_base
from worker.models.worker_models import ModelCatalogue, WorkerModel


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


logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 30.0


class WorkerModelLoader:
    """Changes the states of the models of the catalogue.

    Args:
        engines: all engines of this worker; the list may still grow.
        changes: notified when the state of a model changed.
        stall_limit_s: a download without progress for this long is aborted.
        on_failed: called with a model that could not be loaded, and the error for its requests.

    Attributes:
        ask_peers: returns what other workers have of a model; None if they are not asked.
        crash_history: the engine crashes of each model.
    """

    def __init__(
        self,
        settings: ModelLoadingSettings,
        models: ModelCatalogue,
        engines: Sequence[EngineProcess],
        memory: ModelMemoryManager,
        changes: ChangeNotifier,
        *,
        stall_limit_s: float,
        on_failed: Callable[[WorkerModel, ClusterError], None],
    ) -> None:
        self.settings = settings
        self._models = models
        self._engines = engines
        self._memory = memory
        self._changes = changes
        self._stall_limit_s = stall_limit_s
        self.ask_peers: AskPeers | None = None
        self._on_failed = on_failed
        self._ordered: asyncio.Queue[WorkerModel] = asyncio.Queue()
        self._loads: dict[ModelId, asyncio.Task[None]] = {}  # the last one of each model
        self._ordered_at: dict[tuple[int, ModelId], float] = {}  # by engine and model
        self._loaded: defaultdict[ModelId, set[int]] = defaultdict(set)  # the engines with weights
        self._load_progress: dict[
            tuple[int, ModelId], float
        ] = {}  # load progress by engine and model
        self._smoke_tests = ModelSmokeTests()
        self._deferred = SuspectModelReloads()
        self.crash_history = CrashHistory()

    async def run(self) -> None:
        """Find files and order engines to load them, in one task per model, until cancelled."""
        tasks = Tasks()
        tasks.start(self._read_sizes())
        try:
            while True:
                model = await self._ordered.get()
                before = self._loads.get(model.id)
                self._loads[model.id] = tasks.start(self._load_files(model, before))
        finally:
            await tasks.end()

    # Orders.

    def load(self, model: WorkerModel) -> None:
        """Start loading a model; its state shows the progress. The crash history of a failed model
        is dropped."""
        if model.state in ("loading", "warm"):
            return
        if model.state == "failed":
            self.crash_history.reset(model.id)
        model.state, model.phase, model.progress, model.error = "loading", "loading", 0.0, None
        model.fetched = model.transient = False
        self._ordered.put_nowait(model)

    def unload(self, model: WorkerModel) -> None:
        """Unload a model that has no requests from all engines."""
        logger.info("model %s is unloaded", model.id, extra={"model": model.id})
        model.state, model.phase, model.progress = "available", None, None
        model.placed.clear()
        self._memory.release(model)
        model.engines.clear()
        if (load := self._loads.get(model.id)) is not None:
            load.cancel()  # its download ends with it
        for engine in self._engines:
            engine.send(UnloadModel(model.id))
        self._changes.notify()

    def tick(self) -> None:
        """Make models with a transient failure available again after a while, and load deferred
        models once all others are warm. Call a few times a second."""
        self._order_deferred()
        now = time.monotonic()
        for model in self._models:
            retry = model.transient and now - model.failed_at > _RETRY_AFTER_S
            if model.state == "failed" and retry:
                model.state = "available"

    # Files.

    async def _read_sizes(self) -> None:
        """Read the sizes of the models on this machine, before the first request."""
        for model in list(self._models):
            try:
                source = with_base(model.id, model.source)
                if (folder := local_folder(model.id, source)) is not None:
                    await self._inspect(model, folder)
            except ModelError:
                pass  # reported when the model is loaded
            except Exception:
                logger.exception("the size of model %s cannot be read", model.id)

    async def _inspect(self, model: WorkerModel, folder: Path) -> None:
        trust = model.source.trust_remote_code
        files = await asyncio.to_thread(inspect, folder, trust_remote_code=trust)
        model.folder, model.size_bytes = files.folder, files.weight_bytes

    async def _load_files(self, model: WorkerModel, before: asyncio.Task[None] | None) -> None:
        """Load a model as far as its engines; `before` is its last load, which may still be ending
        its download."""
        if before is not None:
            await asyncio.wait([before])
        if model.state != "loading" or model.placed:  # unloaded meanwhile, or ordered twice
            return
        try:
            await self._find_files_and_order(model)
        except Unavailable as error:
            self._give_up(model, error.message, "available")
            self._on_failed(model, error)
        except ModelError as error:
            model.transient = model.fetched
            self._fail(model, error.message)
        except Exception as error:
            logger.exception("model %s is not loaded", model.id, extra={"model": model.id})
            model.transient = True
            self._fail(model, f"an unexpected error: {type(error).__name__}: {error}")

    async def _find_files_and_order(self, model: WorkerModel) -> None:
        """
        Raises:
            Unavailable: there is not enough memory now.
            ModelError: the files cannot be had, or cannot be loaded.
        """
        found = await find_files(model.id, model.source, partial(self._download, model))
        model.adapter = found.adapter
        await self._inspect(model, found.folder)
        copies = await self._memory.reserve(model)
        if model.state != "loading":  # unloaded meanwhile
            self._memory.release(model)
        else:
            model.phase, model.progress = "loading", 0.0
            chosen = sorted(self._engines, key=self._fitness)[:copies]
            model.placed = {engine.index for engine in chosen}
            self._loaded[model.id].clear()
            self._order(model, chosen)

    def _fitness(self, engine: EngineProcess) -> tuple[bool, int]:
        """Sort key of engines for one more model: running ones first, then by bytes of weights."""
        placed_bytes = sum(model.size_bytes for model in self._placed_on(engine))
        return engine.state == "failed", placed_bytes

    async def _download(self, model: WorkerModel, repo: str, revision: str | None) -> Path:
        model.fetched = True
        model.phase, model.progress = "downloading", 0.0

        def on_size(total_bytes: int, missing_bytes: int) -> None:
            self._memory.check_maximum(model, total_bytes)
            if missing_bytes and not self.settings.downloads:
                raise ModelError(
                    f"{repo} is not on this machine, and downloads are disabled "
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

    def _on_engine_started(self, engine: EngineProcess) -> None:
        """Reload the models of a restarted engine. Models that may have crashed the engine follow
        when all others are warm, so that the streams of those continue until then."""
        suspects = [model.id for model in self._models if self.crash_history.count(model.id)]
        for model in self._deferred.begin(engine.index, self._placed_on(engine), suspects):
            self._order(model, [engine])
        self._order_deferred()

    def _order_deferred(self) -> None:
        for engine in self._engines:
            for model in self._deferred.release(engine.index, self._placed_on(engine)):
                self._order(model, [engine])

    def _placed_on(self, engine: EngineProcess) -> list[WorkerModel]:
        return [model for model in self._models if engine.index in model.placed]

    def on_engine_lost(self, engine: EngineProcess) -> None:
        """Record that the models of an engine are not loaded any more."""
        for model in self._models:
            model.engines.discard(engine.index)
            self._load_progress.pop((engine.index, model.id), None)
            if model.state == "warm" and not model.engines:
                model.state, model.phase, model.progress = "loading", "loading", 0.0
        self._smoke_tests.lost(engine)
        self._deferred.lost(engine.index)

    def mark_failed(self, model: WorkerModel, message: str) -> None:
        """Mark a model as failed until it is loaded by order; its requests fail with `message`."""
        if model.state != "failed":
            model.transient = False
            self._fail(model, message)

    def on_fact(self, engine: EngineProcess, fact: Fact) -> None:
        """Apply what an engine reports about a model; other facts are ignored."""
        match fact:
            case EngineStarted():
                self._on_engine_started(engine)
            case ModelIsLoading():
                self._load_progress[engine.index, fact.model] = fact.progress
                model = self._models[fact.model]
                if model.phase == "loading":
                    model.progress = min(
                        p for (_, m), p in self._load_progress.items() if m == fact.model
                    )
            case ModelLoaded():
                self._on_loaded(engine, self._models[fact.model], fact)
            case ModelFailed():
                self._load_progress.pop((engine.index, fact.model), None)
                self._fail_in(engine, self._models[fact.model], fact.message)
            case StepCompleted() if self._smoke_tests:
                for output in fact.outputs:
                    if output.finish_reason and (test := self._smoke_tests.finish(output.sequence)):
                        self._on_first_token(*test)
            case SequenceRejected():
                test = self._smoke_tests.finish(fact.sequence)
                if test is not None and engine.index in test.model.placed:
                    self._fail(test.model, f"its smoke test failed: {fact.message}")
            case _:
                pass

    def _order(self, model: WorkerModel, engines: Sequence[EngineProcess]) -> None:
        for engine in engines:
            engine.send(model.load_order())
            self._ordered_at[engine.index, model.id] = time.monotonic()

    def _on_loaded(self, engine: EngineProcess, model: WorkerModel, fact: ModelLoaded) -> None:
        """Start the smoke test of a model whose weights were loaded."""
        self._loaded[model.id].add(engine.index)
        if self._loaded[model.id] >= model.placed:
            self._memory.release(model)
        model.max_context_tokens = fact.max_context_tokens
        model.abilities = fact.abilities
        model.warnings = fact.warnings
        model.batching, model.batching_reason = fact.batching, fact.batching_reason
        model.probe_ms = fact.probe_ms
        if model.state == "loading":
            model.phase, model.progress = "warming", 0.0
        self._smoke_tests.begin(engine, model)

    def _on_first_token(self, engine: EngineProcess, model: WorkerModel) -> None:
        self._load_progress.pop((engine.index, model.id), None)
        self.crash_history.loaded(model.id)
        if engine.index not in model.placed:  # unloaded meanwhile
            return
        model.engines.add(engine.index)
        model.state, model.phase, model.progress, model.error = "warm", None, None, None
        model.warm_at = time.monotonic()
        model.load_ms = 1000 * (model.warm_at - self._ordered_at[engine.index, model.id])
        model.used_at = max(model.used_at, model.warm_at)
        logger.info("model %s is warm", model.id, extra={"model": model.id})

    def _fail_in(self, engine: EngineProcess, model: WorkerModel, message: str) -> None:
        """Handle a failed load in one engine: the model fails only if no other engine has it."""
        if not model.placed - {engine.index}:
            self._fail(model, message)
            return
        logger.error(
            "model %s: engine %d cannot load it: %s", model.id, engine.index, message,
            extra={"model": model.id},
        )  # fmt: skip
        model.placed.discard(engine.index)
        model.engines.discard(engine.index)
        engine.send(UnloadModel(model.id))

    def _fail(self, model: WorkerModel, message: str) -> None:
        if model.placed:
            for engine in self._engines:
                engine.send(UnloadModel(model.id))
        self._give_up(model, message, "failed")
        named = message if model.id in message else f"{model.id}: {message}"
        self._on_failed(model, Unavailable(named, code="model_unavailable"))

    def _give_up(self, model: WorkerModel, message: str, state: ModelState) -> None:
        model.state, model.phase, model.progress, model.error = state, None, None, message
        model.failed_at = time.monotonic()
        model.placed.clear()
        self._memory.release(model)
        model.engines.clear()
        logger.error("model %s: %s", model.id, message, extra={"model": model.id})
        self._changes.notify()
