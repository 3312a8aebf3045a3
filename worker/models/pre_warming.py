"""Loading of models before they are requested."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shared.change_notifier import ChangeNotifier
from shared.errors import ClusterError
from shared.ids import ModelId
from shared.messages.worker_report import PreWarmingStatus
from shared.settings import ClusterSettings
from worker.models.lifecycle import ModelLifecycle
from worker.models.worker_models import WorkerModel

logger = logging.getLogger(__name__)


class PreWarming:
    """Loads models by priority, one after another or in parallel. A model that fails, or makes no
    progress for too long, does not delay the others; a slow one continues in the background."""

    def __init__(
        self, settings: ClusterSettings, models: ModelLifecycle, changes: ChangeNotifier
    ) -> None:
        self._settings = settings.worker.pre_warming
        self._models = [models.catalogue[model] for model in settings.pre_warmed_models]
        self._lifecycle = models
        self._changes = changes
        self._warmed: set[ModelId] = set()
        self._abandoned: set[ModelId] = set()

    def configure(self, settings: ClusterSettings) -> None:
        """Load the models that only the new settings pre-warm."""
        self._settings = settings.worker.pre_warming
        wanted = [self._lifecycle.catalogue[model] for model in settings.pre_warmed_models]
        new = [model for model in wanted if model not in self._models]
        self._models = wanted
        for model in new:
            self._begin(model)

    async def run(
        self, has_engine: Callable[[], bool], on_begin: Callable[[], Awaitable[None]]
    ) -> None:
        """Pre-warm the models; returns when each one is warm, failed, or too slow.

        Args:
            has_engine: whether an engine runs that can load them.
            on_begin: awaited before the first model is loaded.
        """
        await self._changes.wait_until(has_engine)
        await on_begin()
        if self._settings.parallel:
            async with asyncio.TaskGroup() as tasks:
                for model in self._models:
                    tasks.create_task(self._warm(model))
        else:
            for model in self._models:
                await self._warm(model)

    def status(self, proposed: list[ModelId]) -> PreWarmingStatus:
        self._warmed.update(model.id for model in self._models if model.state == "warm")
        failed = self._abandoned | {model.id for model in self._models if model.state == "failed"}
        return PreWarmingStatus(
            total=len(self._models),
            completed=len(self._warmed),
            failed=len(failed - self._warmed),
            in_progress=[
                model.id
                for model in self._models
                if model.state == "loading" and model.id not in self._warmed | self._abandoned
            ],
            proposed=proposed,
        )

    def _begin(self, model: WorkerModel) -> bool:
        try:
            self._lifecycle.load(model.id)
        except Exception as error:  # the others are loaded nevertheless
            reason = error.message if isinstance(error, ClusterError) else repr(error)
            logger.error("model %s is not pre-warmed: %s", model.id, reason)
            self._abandoned.add(model.id)
            return False
        return True

    async def _warm(self, model: WorkerModel) -> None:
        if not self._begin(model):
            return
        timeout_s = self._settings.timeout_per_model_ms / 1000
        while model.state == "loading":
            seen = model.phase, model.progress

            def progressed(seen: tuple[str | None, float | None] = seen) -> bool:
                return model.state != "loading" or (model.phase, model.progress) != seen

            try:
                async with asyncio.timeout(timeout_s):
                    await self._changes.wait_until(progressed)
            except TimeoutError:
                logger.warning("model %s: no progress for %g s", model.id, timeout_s)
                model.error = f"no progress for {timeout_s:g} s; loading continues"
                self._abandoned.add(model.id)
                return
        if model.state == "warm":
            self._warmed.add(model.id)
        else:
            self._abandoned.add(model.id)
