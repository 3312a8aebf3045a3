"""Loading models before anybody asks for them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shared.settings import ClusterSettings
from worker.model_catalogue import Model
from worker.scheduler import Scheduler

logger = logging.getLogger(__name__)


async def pre_warm(
    settings: ClusterSettings, scheduler: Scheduler, on_warming: Callable[[], Awaitable[None]]
) -> None:
    """Load the pre-warmed models, high priority first; returns when all are warm or failed.

    Args:
        on_warming: awaited once the first engine runs and loading begins.
    """
    await scheduler.changes.wait_until(
        lambda: any(engine.state == "running" for engine in scheduler.engines)
    )
    await on_warming()
    models = [scheduler.models[model] for model in settings.pre_warmed_models]
    if settings.worker.pre_warming.parallel:
        for model in models:
            scheduler.loader.load(model)
    for model in models:
        await _warm(model, scheduler, settings.worker.pre_warming.timeout_per_model_ms / 1000)


async def _warm(model: Model, scheduler: Scheduler, patience_s: float) -> None:
    """Wait for one model as long as it makes progress; a slow one loads on in the back."""
    if not model.requested:
        scheduler.loader.load(model)
    while model.state == "loading":
        seen = model.progress

        def moved(seen: float | None = seen) -> bool:
            return model.state != "loading" or model.progress != seen

        try:
            async with asyncio.timeout(patience_s):
                await scheduler.changes.wait_until(moved)
        except TimeoutError:
            logger.warning("model %s: no progress for %g s", model.id, patience_s)
            return
