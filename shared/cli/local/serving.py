"""Waiting for a local cluster to be ready, and supervising it while work runs."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from shared.cli.local.cluster import LocalCluster
from shared.client import Cluster
from shared.errors import ModelError, Unavailable
from shared.messages.health import ClusterHealth
from shared.service import StopSignal

T = TypeVar("T")

_POLL_S = 0.1


async def wait_until_ready(
    cluster: Cluster, workers: Collection[str], show: Callable[[ClusterHealth], None]
) -> ClusterHealth:
    """Return the health of the cluster once all these workers are ready.

    Args:
        show: called with the health at each poll.

    Raises:
        ModelError: a model could not be loaded.
    """
    while True:
        await asyncio.sleep(_POLL_S)
        with contextlib.suppress(Unavailable):
            health = await cluster.health()
            show(health)
            _raise_failed_model(health)
            ready = {str(worker.id) for worker in health.workers if worker.state == "ready"}
            if ready.issuperset(workers):
                return health


async def run_supervised(local: LocalCluster, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; restart processes that end meanwhile.

    Raises:
        ClusterError: a process ended too often; `work` is cancelled then.
        Exception: what `work` raises; of an exception group the first.
    """
    watch, working = asyncio.create_task(local.watch()), asyncio.create_task(work)
    try:
        await asyncio.wait((watch, working), return_when=asyncio.FIRST_COMPLETED)
        for task in (watch, working):
            if task.done():
                _raise_first(task.exception())
        return working.result()
    finally:
        await _cancel(watch, working)


async def run_until_stopped(stop: StopSignal, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None if a stop was requested first.

    After a stop request `work` is cancelled and awaited.
    """
    stopped, working = asyncio.create_task(stop.wait()), asyncio.create_task(work)
    try:
        await asyncio.wait((stopped, working), return_when=asyncio.FIRST_COMPLETED)
        return None if stopped.done() else working.result()
    finally:
        await _cancel(stopped, working)


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _raise_failed_model(health: ClusterHealth) -> None:
    for worker in health.workers:
        for model in worker.models:
            if model.state == "failed":
                raise ModelError(f"{worker.id} could not load {model.id}: {model.error}")


def _raise_first(error: BaseException | None) -> None:
    """Raise an error; of an exception group the first error that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
