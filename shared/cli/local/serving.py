"""A cluster on this machine while it serves: ready, watched, and left when asked."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from shared.cli.local.cluster import LocalCluster
from shared.client import Cluster
from shared.errors import ModelError, Unavailable
from shared.messages.health import ClusterHealth
from shared.service import StopRequest

T = TypeVar("T")

_POLL_S = 0.1


async def wait_until_ready(
    cluster: Cluster, workers: Collection[str], show: Callable[[ClusterHealth], None]
) -> ClusterHealth:
    """The health of the cluster once all these workers are ready.

    Args:
        show: called with each health meanwhile.

    Raises:
        ModelError: a model could not be loaded.
    """
    while True:
        await asyncio.sleep(_POLL_S)
        with contextlib.suppress(Unavailable):
            health = await cluster.health()
            show(health)
            _refuse_failed_models(health)
            ready = {str(worker.id) for worker in health.workers if worker.state == "ready"}
            if ready.issuperset(workers):
                return health


async def while_watched(local: LocalCluster, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; what ends meanwhile is started again.

    Raises:
        ClusterError: something ended too often; `work` is cancelled then.
        Exception: what `work` raises, and of a group the first.
    """
    watch, working = asyncio.create_task(local.watch()), asyncio.create_task(work)
    try:
        await asyncio.wait((watch, working), return_when=asyncio.FIRST_COMPLETED)
        for task in (watch, working):
            if task.done():
                _raise_first(task.exception())
        return working.result()
    finally:
        await _end(watch, working)


async def unless_asked(stop: StopRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None when a stop was requested before. Then it was cancelled, and has
    cleaned up."""
    asked, working = asyncio.create_task(stop.wait()), asyncio.create_task(work)
    try:
        await asyncio.wait((asked, working), return_when=asyncio.FIRST_COMPLETED)
        return None if asked.done() else working.result()
    finally:
        await _end(asked, working)


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _refuse_failed_models(health: ClusterHealth) -> None:
    for worker in health.workers:
        for model in worker.models:
            if model.state == "failed":
                raise ModelError(f"{worker.id} could not load {model.id}: {model.error}")


def _raise_first(error: BaseException | None) -> None:
    """Raise the first real error of a task group's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
