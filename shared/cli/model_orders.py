"""Orders to load, unload and pin models, and their progress."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from shared.cli.outcomes import WorkerOrderResult
from shared.cli.views.models import ModelTableRow, model_rows
from shared.client import Cluster
from shared.errors import BusError, ClusterError, InvalidRequest, ModelError, Unavailable
from shared.ids import ModelId, WorkerId
from shared.messages.control import ControlOrder, ListModels, LoadModel, PinModel, UnloadModel
from shared.messages.health import ClusterHealth
from shared.messages.model_status import ModelStatus

_POLL_S = 0.2
_SILENCE_LIMIT_S = 10.0
_REPORT_LIMIT_S = 5.0
LOADED = ("warm", "loading")
"""States of a model that takes memory."""


def models_on_workers(
    health: ClusterHealth, model: ModelId, worker: WorkerId | None
) -> list[ModelTableRow]:
    """Return the model on each worker that is configured with it, or only on `worker`.

    Raises:
        Unavailable: the worker does not exist, or the cluster has no workers.
        InvalidRequest: no worker, or not `worker`, is configured with the model.
    """
    workers = [report for report in health.workers if worker in (None, report.id)]
    if not workers:
        ids = ", ".join(report.id for report in health.workers) or "none"
        name = "" if worker is None else f" {worker!r}"
        raise Unavailable(f"there is no worker{name}; there are: {ids}")
    rows = model_rows(workers)
    found = [row for row in rows if row.model.id == model]
    if not found:
        subject = "no worker has a" if worker is None else f"worker {worker} has no"
        names = ", ".join(sorted({row.model.id for row in rows})) or "none"
        message = f"{subject} model {model!r}; there are: {names}"
        raise InvalidRequest(message, code="unknown_model", param="model")
    return found


async def load(
    cluster: Cluster, row: ModelTableRow, show: Callable[[ModelStatus], None], *, wait: bool
) -> WorkerOrderResult:
    """Order a worker to load a model.

    Args:
        show: called with the status of the model until the model is warm.
        wait: return when the model is warm or has failed, not at once.
    """
    if row.model.state == "warm":
        return WorkerOrderResult(row.worker, done="is warm already")
    started_at = time.monotonic()

    async def loaded() -> str:
        if not wait:
            return "is being loaded"
        await _wait_until_warm(cluster, row, show)
        return f"is warm after {time.monotonic() - started_at:.1f} s"

    return await _perform(cluster, row, LoadModel(model=row.model.id), loaded)


async def unload(cluster: Cluster, row: ModelTableRow) -> WorkerOrderResult:
    """Order a worker to unload a model; return when the controllers know that it is unloaded."""

    async def unloaded() -> str:
        state = await _state_after_unload(cluster, row)
        begun = "is being unloaded" if state in LOADED else "is unloaded"
        return f"{begun}; its state is {state}"

    return await _perform(cluster, row, UnloadModel(model=row.model.id), unloaded)


async def pin(cluster: Cluster, row: ModelTableRow, *, pinned: bool) -> WorkerOrderResult:
    """Order a worker to protect a model from eviction, or to end the protection."""

    async def done() -> str:
        return "is pinned" if pinned else "is no longer pinned"

    return await _perform(cluster, row, PinModel(model=row.model.id, pinned=pinned), done)


async def _perform(
    cluster: Cluster, row: ModelTableRow, order: ControlOrder, done: Callable[[], Awaitable[str]]
) -> WorkerOrderResult:
    """Send an order to the worker of a row.

    Args:
        done: called when the worker has accepted the order; returns what it did.
    """
    try:
        reply = await cluster.control(row.worker, order)
        if not reply.ok:
            return WorkerOrderResult(row.worker, code=reply.code, reason=reply.message)
        return WorkerOrderResult(row.worker, done=await done())
    except ClusterError as error:
        return WorkerOrderResult(row.worker, code=error.code, reason=error.message)


async def _state_after_unload(cluster: Cluster, row: ModelTableRow) -> str:
    """Return the state that `cluster models` lists, once that is no longer a loaded one.

    Controllers learn of the change with the worker's next report. After `_REPORT_LIMIT_S` the state
    is returned as it is.

    Raises:
        ClusterError: no controller answers.
    """
    deadline = time.monotonic() + _REPORT_LIMIT_S
    while True:
        rows = model_rows((await cluster.health()).workers)
        states = [each.model.state for each in rows if each.worker == row.worker
                  and each.model.id == row.model.id]  # fmt: skip
        state = states[0] if states else "available"
        if state not in LOADED or time.monotonic() > deadline:
            return state
        await asyncio.sleep(_POLL_S)


async def _wait_until_warm(
    cluster: Cluster, row: ModelTableRow, show: Callable[[ModelStatus], None]
) -> None:
    """Return when the model is warm.

    Raises:
        ModelError: the model could not be loaded.
        ClusterError: the worker has not answered for `_SILENCE_LIMIT_S`.
    """
    was_loading = False
    answered_at = time.monotonic()
    while True:
        try:
            reply = await cluster.control(row.worker, ListModels())
        except (Unavailable, BusError):
            if time.monotonic() - answered_at > _SILENCE_LIMIT_S:
                raise
        else:
            answered_at = time.monotonic()
            status = next((model for model in reply.models if model.id == row.model.id), None)
            if is_warm(status, was_loading=was_loading):
                return
            assert status is not None
            show(status)
            was_loading = was_loading or status.state == "loading"
        await asyncio.sleep(_POLL_S)


def is_warm(status: ModelStatus | None, *, was_loading: bool) -> bool:
    """Whether a model is warm after an order to load it; False while loading may still succeed.

    Args:
        was_loading: whether an earlier status said that the model was loading.

    Raises:
        ModelError: loading failed.
    """
    if status is None:
        raise ModelError("the worker no longer has the model")
    if status.state == "failed" or (status.state == "available" and status.error):
        raise ModelError(status.error or "the worker gave no reason")
    if status.state == "available" and was_loading:
        raise ModelError("it was unloaded before it was warm")
    return status.state == "warm"
