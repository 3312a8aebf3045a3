"""Orders to drain and restart workers, and their progress."""

import asyncio
import time
from collections.abc import Callable, Sequence

from shared.cli.outcomes import WorkerOrderResult
from shared.cli.progress import ProgressDisplay, startup_progress
from shared.client import Cluster
from shared.errors import BusError, ClusterError, InvalidRequest, RequestError, Unavailable
from shared.messages.control import DrainWorker
from shared.messages.worker_report import WorkerReport
from shared.terminal_text import printable

_POLL_S = 0.2
_SILENCE_LIMIT_S = 10.0

OnProgress = Callable[[str, float], None]
"""Called with the activity of a worker, and the fraction done, 0 to 1."""


async def select_workers(cluster: Cluster, names: Sequence[str]) -> list[WorkerReport]:
    """Return the workers of these names, in this order; all workers if `names` is empty.

    Raises:
        InvalidRequest: a worker does not exist.
        Unavailable: the cluster has no workers.
    """
    workers = {str(report.id): report for report in (await cluster.health()).workers}
    known = ", ".join(workers) or "none"
    for name in names:
        if name not in workers:
            message = f"there is no worker {printable(name)!r}; there are: {known}"
            raise InvalidRequest(message, code="no_worker")
    if not workers:
        raise Unavailable("the cluster has no workers")
    return [workers[name] for name in dict.fromkeys(names)] or list(workers.values())


async def drain(
    cluster: Cluster,
    worker: WorkerReport,
    on_progress: OnProgress,
    *,
    deadline_s: float | None,
    wait: bool,
) -> WorkerOrderResult:
    """Order a worker to drain.

    Args:
        deadline_s: the time after which its streams migrate; None for the worker's setting.
        wait: return when the worker has left the cluster, not at once.
    """
    started_at = time.monotonic()
    try:
        await _order(cluster, worker, deadline_s, restart=False)
        if not wait:
            return WorkerOrderResult(worker.id, done="drains")
        await _wait_until_gone(cluster, worker, on_progress)
    except ClusterError as error:
        return WorkerOrderResult(worker.id, code=error.code, reason=error.message)
    return WorkerOrderResult(
        worker.id, done=f"has left after {time.monotonic() - started_at:.1f} s"
    )


async def restart(
    cluster: Cluster,
    worker: WorkerReport,
    on_progress: OnProgress,
    *,
    deadline_s: float | None,
    limit_s: float,
) -> WorkerOrderResult:
    """Order a worker to restart; return when the worker is ready again.

    Args:
        deadline_s: as for `drain`.
        limit_s: maximum time from leaving the cluster to ready.
    """
    started_at = time.monotonic()
    try:
        await _order(cluster, worker, deadline_s, restart=True)
        await _wait_until_gone(cluster, worker, on_progress)
        await _wait_until_ready(cluster, worker, on_progress, limit_s)
    except ClusterError as error:
        return WorkerOrderResult(worker.id, code=error.code, reason=error.message)
    return WorkerOrderResult(
        worker.id, done=f"is ready again after {time.monotonic() - started_at:.1f} s"
    )


def progress_callback(display: ProgressDisplay, worker: WorkerReport) -> OnProgress:
    """Return a callback that shows the progress of this worker."""

    def on_progress(activity: str, fraction: float) -> None:
        display.update(worker.id, activity, fraction)

    return on_progress


async def _order(
    cluster: Cluster, worker: WorkerReport, deadline_s: float | None, *, restart: bool
) -> None:
    """
    Raises:
        ClusterError: the worker does not answer, or refuses.
    """
    deadline_ms = None if deadline_s is None else round(deadline_s * 1000)
    reply = await cluster.control(worker.id, DrainWorker(deadline_ms=deadline_ms, restart=restart))
    if not reply.ok:
        raise RequestError(reply.message or "the worker refused", code=reply.code)


async def _wait_until_gone(cluster: Cluster, worker: WorkerReport, on_progress: OnProgress) -> None:
    """Return when this boot of the worker has left the cluster."""
    total = 1
    while (now := await _worker_report(cluster, worker)) and now.boot_id == worker.boot_id:
        left = now.active_requests + now.queued_requests
        total = max(total, left)
        on_progress(f"drains, {left} request{'s' * (left != 1)} left", 1 - left / total)
        await asyncio.sleep(_POLL_S)


async def _wait_until_ready(
    cluster: Cluster, worker: WorkerReport, on_progress: OnProgress, limit_s: float
) -> None:
    """Return when a new boot of the worker is ready.

    Raises:
        Unavailable: the worker is not ready within `limit_s`.
    """
    until = time.monotonic() + limit_s
    while (now := await _worker_report(cluster, worker)) is None or now.state != "ready":
        if time.monotonic() > until:
            state = "did not come back" if now is None else f"is still {now.state}"
            raise Unavailable(f"it left, and {state} after {limit_s:g} s; see its log")
        on_progress(*(("starts", 0.0) if now is None else startup_progress(now)))
        await asyncio.sleep(_POLL_S)


async def _worker_report(cluster: Cluster, worker: WorkerReport) -> WorkerReport | None:
    """Return the controllers' report of a worker; None if the worker is not in the cluster.

    Raises:
        ClusterError: no controller has answered for `_SILENCE_LIMIT_S`.
    """
    until = time.monotonic() + _SILENCE_LIMIT_S
    while True:
        try:
            health = await cluster.health()
            return next((report for report in health.workers if report.id == worker.id), None)
        except (Unavailable, BusError):
            if time.monotonic() > until:
                raise
        await asyncio.sleep(_POLL_S)
