"""Having workers end and start again, and following how that goes."""

import asyncio
import time
from collections.abc import Callable, Sequence

from shared.cli.outcomes import Outcome
from shared.cli.progress import LoadDisplay, warming
from shared.cli.views.figures import printable
from shared.client import Cluster
from shared.errors import BusError, ClusterError, InvalidRequest, RequestError, Unavailable
from shared.messages.control import DrainWorker
from shared.messages.worker_report import WorkerReport

_POLL_S = 0.2
_SILENCE_LIMIT_S = 10.0

Show = Callable[[str, float], None]
"""Told what a worker does, and how far that is, 0 to 1."""


async def named(cluster: Cluster, names: Sequence[str]) -> list[WorkerReport]:
    """The workers of these names, in this order; all of them where there are no names.

    Raises:
        InvalidRequest: one is not there.
        Unavailable: there is none at all.
    """
    workers = {str(report.id): report for report in (await cluster.health()).workers}
    there = ", ".join(workers) or "none"
    for name in names:
        if name not in workers:
            message = f"there is no worker {printable(name)!r}; there are: {there}"
            raise InvalidRequest(message, code="no_worker")
    if not workers:
        raise Unavailable("there is no worker")
    return [workers[name] for name in dict.fromkeys(names)] or list(workers.values())


async def drain(
    cluster: Cluster, worker: WorkerReport, show: Show, *, deadline_s: float | None, wait: bool
) -> Outcome:
    """Have a worker end.

    Args:
        deadline_s: after that its streams go on elsewhere; None for its own setting.
        wait: return when it has left, not at once.
    """
    began = time.monotonic()
    try:
        await _order(cluster, worker, deadline_s, restart=False)
        if not wait:
            return Outcome(worker.id, done="drains")
        await _follow_to_its_end(cluster, worker, show)
    except ClusterError as error:
        return Outcome(worker.id, code=error.code, reason=error.message)
    return Outcome(worker.id, done=f"has left after {time.monotonic() - began:.1f} s")


async def restart(
    cluster: Cluster, worker: WorkerReport, show: Show, *, deadline_s: float | None, limit_s: float
) -> Outcome:
    """Have a worker end and start again; returns when it is ready.

    Args:
        limit_s: that takes so long at most, after it has left.
    """
    began = time.monotonic()
    try:
        await _order(cluster, worker, deadline_s, restart=True)
        await _follow_to_its_end(cluster, worker, show)
        await _follow_until_ready(cluster, worker, show, limit_s)
    except ClusterError as error:
        return Outcome(worker.id, code=error.code, reason=error.message)
    return Outcome(worker.id, done=f"is ready again after {time.monotonic() - began:.1f} s")


def shown_on(display: LoadDisplay, worker: WorkerReport) -> Show:
    """A line or bar for this worker."""

    def show(what: str, share: float) -> None:
        display.update(worker.id, what, share)

    return show


async def _order(
    cluster: Cluster, worker: WorkerReport, deadline_s: float | None, *, restart: bool
) -> None:
    """Raises ClusterError: it does not answer, or refuses."""
    deadline_ms = None if deadline_s is None else round(deadline_s * 1000)
    reply = await cluster.control(worker.id, DrainWorker(deadline_ms=deadline_ms, restart=restart))
    if not reply.ok:
        raise RequestError(reply.message or "it refused", code=reply.code)


async def _follow_to_its_end(cluster: Cluster, worker: WorkerReport, show: Show) -> None:
    """Return when this boot of the worker is gone."""
    most = 1
    while (now := await _report(cluster, worker)) and now.boot_id == worker.boot_id:
        left = now.active_requests + now.queued_requests
        most = max(most, left)
        show(f"drains, {left} request{'s' * (left != 1)} to go", 1 - left / most)
        await asyncio.sleep(_POLL_S)


async def _follow_until_ready(
    cluster: Cluster, worker: WorkerReport, show: Show, limit_s: float
) -> None:
    """Return when another boot of it is ready.

    Raises:
        Unavailable: not in time.
    """
    until = time.monotonic() + limit_s
    while (now := await _report(cluster, worker)) is None or now.state != "ready":
        if time.monotonic() > until:
            state = "did not come back" if now is None else f"is still {now.state}"
            raise Unavailable(f"it left, and {state} after {limit_s:g} s; look at its log")
        show(*(("starts", 0.0) if now is None else warming(now)))
        await asyncio.sleep(_POLL_S)


async def _report(cluster: Cluster, worker: WorkerReport) -> WorkerReport | None:
    """What the controllers know of a worker now.

    Raises:
        ClusterError: none has answered for some seconds.
    """
    until = time.monotonic() + _SILENCE_LIMIT_S
    while True:
        try:
            health = await cluster.health()
            return next((one for one in health.workers if one.id == worker.id), None)
        except (Unavailable, BusError):
            if time.monotonic() > until:
                raise
        await asyncio.sleep(_POLL_S)
