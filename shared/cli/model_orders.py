"""Having workers load and unload models, and following how that goes."""

import asyncio
import time
from collections.abc import Callable

from shared.cli.outcomes import Outcome
from shared.cli.views.models import ModelRow, model_rows
from shared.client import Cluster
from shared.errors import BusError, ClusterError, InvalidRequest, ModelError, Unavailable
from shared.ids import ModelId, WorkerId
from shared.messages.control import ListModels, LoadModel, UnloadModel
from shared.messages.health import ClusterHealth
from shared.messages.model_status import ModelStatus

_POLL_S = 0.2
_SILENCE_LIMIT_S = 10.0


def having(health: ClusterHealth, model: ModelId, worker: WorkerId | None) -> list[ModelRow]:
    """The model on each worker that names it, or only on `worker`.

    Raises:
        Unavailable: there is no such worker, or none at all.
        InvalidRequest: no worker, or not this one, names such a model.
    """
    workers = [report for report in health.workers if worker in (None, report.id)]
    if not workers:
        ids = ", ".join(report.id for report in health.workers) or "none"
        name = "" if worker is None else f" {worker!r}"
        raise Unavailable(f"there is no worker{name}; there are: {ids}")
    rows = model_rows(workers)
    found = [row for row in rows if row.model.id == model]
    if not found:
        whose = "no worker has a" if worker is None else f"worker {worker} has no"
        names = ", ".join(sorted({row.model.id for row in rows})) or "none"
        message = f"{whose} model {model!r}; there are: {names}"
        raise InvalidRequest(message, code="unknown_model", param="model")
    return found


async def load(
    cluster: Cluster, row: ModelRow, show: Callable[[ModelStatus], None], *, wait: bool
) -> Outcome:
    """Have a worker load a model.

    Args:
        show: called with how far it is, again and again.
        wait: return when it is warm or failed, not at once.
    """
    if row.model.state == "warm":
        return Outcome(row.worker, done="is warm already")
    started_at = time.monotonic()
    try:
        reply = await cluster.control(row.worker, LoadModel(model=row.model.id))
        if not reply.ok:
            return Outcome(row.worker, code=reply.code, reason=reply.message)
        if not wait:
            return Outcome(row.worker, done="is being loaded")
        await _loaded(cluster, row, show)
    except ClusterError as error:
        return Outcome(row.worker, code=error.code, reason=error.message)
    return Outcome(row.worker, done=f"is warm after {time.monotonic() - started_at:.1f} s")


async def unload(cluster: Cluster, row: ModelRow) -> Outcome:
    """Have a worker give a model's memory back."""
    try:
        reply = await cluster.control(row.worker, UnloadModel(model=row.model.id))
    except ClusterError as error:
        return Outcome(row.worker, code=error.code, reason=error.message)
    if not reply.ok:
        return Outcome(row.worker, code=reply.code, reason=reply.message)
    gone = all(model.state == "available" for model in reply.models)
    return Outcome(row.worker, done="is unloaded" if gone else "is being unloaded")


async def _loaded(cluster: Cluster, row: ModelRow, show: Callable[[ModelStatus], None]) -> None:
    """Return when the model is warm.

    Raises:
        ModelError: it failed.
        ClusterError: the worker has not answered for some seconds.
    """
    begun = False
    heard_at = time.monotonic()
    while True:
        try:
            reply = await cluster.control(row.worker, ListModels())
        except (Unavailable, BusError):
            if time.monotonic() - heard_at > _SILENCE_LIMIT_S:
                raise
        else:
            heard_at = time.monotonic()
            status = next((one for one in reply.models if one.id == row.model.id), None)
            if is_warm(status, begun=begun):
                return
            assert status is not None
            show(status)
            begun = begun or status.state == "loading"
        await asyncio.sleep(_POLL_S)


def is_warm(status: ModelStatus | None, *, begun: bool) -> bool:
    """Whether a model that was ordered is there; False while it may still come.

    Args:
        begun: it was seen loading before.

    Raises:
        ModelError: it will not come.
    """
    if status is None:
        raise ModelError("the worker does not know the model any more")
    if status.state == "failed" or (status.state == "available" and status.error):
        raise ModelError(status.error or "the worker does not say why")
    if status.state == "available" and begun:
        raise ModelError("it was unloaded again before it was warm")
    return status.state == "warm"
