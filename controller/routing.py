"""Which worker serves a request: filter, then pick. Pure functions over worker views."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from controller.registry import WorkerView
from shared.errors import Unavailable
from shared.ids import ModelId, WorkerId
from shared.messages.events import MEMORY_RETRY_AFTER_MS, ModelState, WorkerReport, refuses
from shared.messages.request import Priority, Requirements

_UNKNOWN_RETRY_MS = 1000
_LONGEST_RETRY_MS = 60_000
_READINESS: dict[ModelState, int] = {"warm": 0, "loading": 1, "available": 2}


@dataclass(frozen=True, slots=True)
class Need:
    """What a request asks of a worker: one of `models`, the earlier the better."""

    models: Sequence[ModelId]
    requires: Requirements | None = None
    level: Priority = "medium"


@dataclass(frozen=True, slots=True)
class Route:
    worker: WorkerView
    model: ModelId


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a worker is out; `code` is a key of `errors.ERROR_CODES`."""

    code: str
    reason: str
    retry_after_ms: int | None = None


def choose(
    need: Need,
    workers: Sequence[WorkerView],
    *,
    excluded: Collection[WorkerId] = (),
    tie_break: Callable[[], float],
) -> Route:
    """The least busy worker that can serve `need`, with the best model it has for it.

    The first model that any worker can serve wins; then a worker that holds it warm; then
    the lowest share of its batch slots in use.

    Args:
        excluded: workers that refused this request already.
        tie_break: draws a number; among equals the lowest wins.

    Raises:
        Unavailable: no worker is left; says why for each.
    """
    candidates = [view for view in workers if view.id not in excluded]
    obstacles: dict[WorkerId, Obstacle] = {}
    for model in need.models:
        eligible = []
        for view in candidates:
            obstacle = find_obstacle(view, model, need)
            if obstacle is None:
                eligible.append(view)
            else:
                obstacles.setdefault(view.id, obstacle)
        if eligible:
            best = min(eligible, key=lambda view: (*_cost(view, model), tie_break()))
            return Route(best, model)
    raise _unavailable(need, obstacles)


def find_obstacle(view: WorkerView, model: ModelId, need: Need) -> Obstacle | None:
    """Why this worker cannot serve this model now; None when it can."""
    report = view.report
    if report.state not in ("ready", "warming"):
        code = "draining" if report.state == "draining" else "no_worker"
        return Obstacle(code, f"is {report.state}")
    status = next((status for status in report.models if status.id == model), None)
    if status is None:
        return Obstacle("no_worker", f"does not have {model}")
    if status.state == "failed":
        return Obstacle("model_unavailable", f"could not load {model}: {status.error}")
    if need.requires is not None and (unmet := _unmet(view, need.requires)):
        return Obstacle("requirements_unmet", unmet)
    return _short_of_memory(report, need.level) or _full(view, need.level)


def _short_of_memory(report: WorkerReport, level: Priority) -> Obstacle | None:
    if not refuses(report.memory.pressure, level):
        return None
    reason = f"is short of memory ({report.memory.own_bytes / 1e9:.2f} GB held)"
    return Obstacle("memory_pressure", reason, MEMORY_RETRY_AFTER_MS)


def _full(view: WorkerView, level: Priority) -> Obstacle | None:
    """A worker's own word on its room counts; older ones only tell their depth."""
    report = view.report
    if not report.max_queue_depth:
        return None
    room = report.queue.room.get(level, report.max_queue_depth - report.queued_requests)
    if room > 0:
        return None
    rate = report.queue.drain_per_s
    wait_ms = (1 + view.turned_away) * 1000 / rate if rate else _UNKNOWN_RETRY_MS
    retry_after_ms = min(round(wait_ms), _LONGEST_RETRY_MS)
    return Obstacle("queue_full", f"has {report.queued_requests} requests queued", retry_after_ms)


def _cost(view: WorkerView, model: ModelId) -> tuple[int, float]:
    status = next(status for status in view.report.models if status.id == model)
    return _READINESS[status.state], view.load / max(1, view.report.max_batch_size)


def _unmet(view: WorkerView, requires: Requirements) -> str | None:
    hardware = view.report.hardware
    if requires.min_memory_gb is not None and hardware.memory_bytes < requires.min_memory_gb * 1e9:
        return f"has {hardware.memory_bytes / 1e9:.0f} GB of memory"
    if requires.chip is not None and requires.chip.lower() not in hardware.chip.lower():
        return f"has the chip {hardware.chip!r}"
    if requires.accelerator not in (None, hardware.accelerator):
        return f"has the accelerator {hardware.accelerator!r}"
    for name, value in requires.labels.items():
        if view.report.labels.get(name) != value:
            return f"has the label {name}={view.report.labels.get(name)}"
    return None


def _unavailable(need: Need, obstacles: dict[WorkerId, Obstacle]) -> Unavailable:
    wanted = " or ".join(need.models)
    if not obstacles:
        return Unavailable(f"no worker is there that could serve {wanted}")
    reasons = "; ".join(f"{worker} {found.reason}" for worker, found in sorted(obstacles.items()))
    codes = {found.code for found in obstacles.values()}
    code = codes.pop() if len(codes) == 1 else "no_worker"
    waits = [wait for found in obstacles.values() if (wait := found.retry_after_ms) is not None]
    retry_after_ms = min(waits, default=None) if code != "no_worker" else None
    return Unavailable(
        f"no worker can serve {wanted} now: {reasons}", code=code, retry_after_ms=retry_after_ms
    )
