"""Who cannot serve a request, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from controller.fleet.worker_view import WorkerView
from controller.routing.route_query import RouteQuery
from shared.errors import Unavailable
from shared.ids import ModelId, WorkerId
from shared.messages.model_status import ModelStatus
from shared.messages.priorities import Priority
from shared.messages.request import Requirements
from shared.messages.worker_report import MEMORY_RETRY_AFTER_MS, WorkerReport, refuses

_UNKNOWN_RETRY_MS = 1000
_LONGEST_RETRY_MS = 60_000
_MOST_NAMED = 10
"""An error names so many workers; the others are counted."""

_FAR = (
    "no_worker", "not_supported", "requirements_unmet", "model_unavailable", "draining",
    "not_claimed",
)  # fmt: skip
"""Codes of workers that are not those to wait for, where there are others; farthest first."""

TEMPORARY = frozenset({"queue_full", "memory_pressure", "circuit_open"})
"""Codes of what a worker gets over by itself."""


@dataclass(frozen=True, slots=True)
class Ineligibility:
    """Why a worker is out; `code` is a key of `errors.ERROR_CODES`.

    Attributes:
        may_return: soon, and nobody can say when.
        starts: for the first time.
    """

    code: str
    reason: str
    retry_after_ms: int | None = None
    may_return: bool = False
    starts: bool = False

    @property
    def passes(self) -> bool:
        return self.code in TEMPORARY or self.may_return


class Reason(Protocol):
    """Why a request was not served: an `Ineligibility`, a worker's rejection, or an error."""

    @property
    def code(self) -> str: ...

    @property
    def retry_after_ms(self) -> int | None: ...


R = TypeVar("R", bound=Reason)

GONE = Ineligibility("no_worker", "ended a moment ago", may_return=True)


Ineligibilities = Mapping[WorkerId, Ineligibility]


class NoRoute(Unavailable):
    """No worker can serve a request now.

    Attributes:
        passes: whether one that could is only short of room, failed lately, or may be back soon,
            or nobody was heard of yet: it pays to wait.
        returns: of these, whether it may be back soon, or nobody was heard of yet.
        starts: whether one that could starts.
    """

    def __init__(
        self, query: RouteQuery, ineligibilities: Ineligibilities, *, nobody: bool = False
    ) -> None:
        found = list(ineligibilities.values())
        code = nearest(found).code if found else "no_worker"
        waits = [found.retry_after_ms for found in ineligibilities.values() if found.retry_after_ms]
        super().__init__(
            _message(query, ineligibilities),
            code=code,
            retry_after_ms=min(waits, default=None) if code != "no_worker" else None,
        )
        self.ineligibilities = ineligibilities
        self.returns = nobody or any(found.may_return for found in ineligibilities.values())
        self.passes = self.returns or any(found.passes for found in ineligibilities.values())
        self.starts = any(found.starts for found in ineligibilities.values())


def find_ineligibility(
    view: WorkerView, model: ModelId, query: RouteQuery, now: float = 0.0
) -> Ineligibility | None:
    """Why this worker cannot serve this model now; None when it can."""
    report = view.report
    if report.state not in ("starting", "ready", "warming"):
        code = "draining" if report.state == "draining" else "no_worker"
        return Ineligibility(code, f"is {report.state}")
    status = view.models.get(model)
    if status is None:
        return Ineligibility("no_worker", f"does not have {model}")
    if status.state == "failed":
        return Ineligibility("model_unavailable", f"could not load {model}: {status.error}")
    if query.requires is not None and (unmet := _unmet(report, query.requires)):
        return Ineligibility("requirements_unmet", unmet)
    if (unable := _unable(status, query)) is not None:
        return unable
    if not view.claimed:
        return Ineligibility("not_claimed", "was not claimed yet", may_return=True)
    if report.state == "starting":
        return Ineligibility("no_worker", "is starting", may_return=True, starts=not view.was_up)
    if view.breaker is not None and not view.breaker.admits(now):
        retry_after_ms = view.breaker.retry_after_ms(now) or _UNKNOWN_RETRY_MS
        return Ineligibility("circuit_open", "failed several times lately", retry_after_ms)
    return _short_of_memory(report, query.level) or _full(view, query.level)


def is_capable(view: WorkerView, query: RouteQuery) -> bool:
    """Whether this worker is one for it, when it is well and has room."""
    statuses = (view.models.get(model) for model in query.models)
    if all(
        status is None or status.state == "failed" or _unable(status, query) is not None
        for status in statuses
    ):
        return False
    return query.requires is None or _unmet(view.report, query.requires) is None


def _short_of_memory(report: WorkerReport, level: Priority) -> Ineligibility | None:
    if report.memory.pressure == "none" or not refuses(report.memory.pressure, level):
        return None
    reason = f"is short of memory ({report.memory.own_bytes / 1e9:.2f} GB held)"
    return Ineligibility("memory_pressure", reason, MEMORY_RETRY_AFTER_MS)


def _full(view: WorkerView, level: Priority) -> Ineligibility | None:
    """A worker's own word on its room counts; older ones only tell their depth. What was sent
    there since takes of it."""
    report = view.report
    if not report.max_queue_depth:
        return None
    room = report.queue.room.get(level)
    if room is None:
        room = report.max_queue_depth - report.queued_requests
    if room > view.unreported or room > _queued_since(view):
        return None
    rate = report.queue.drain_per_s
    wait_ms = (1 + view.queue_full_count) * 1000 / rate if rate else _UNKNOWN_RETRY_MS
    retry_after_ms = min(round(wait_ms), _LONGEST_RETRY_MS)
    return Ineligibility(
        "queue_full", f"has {report.queued_requests} requests queued", retry_after_ms
    )


def _queued_since(view: WorkerView) -> int:
    """How many of those sent there since its report found no place but in its queue."""
    report = view.report
    places = 0 if report.queued_requests else max(0, report.max_batch_size - report.places_taken)
    over = max(view.unreported, view.unreported_choices) - places
    return max(0, min(view.unreported, over))


def _unable(status: ModelStatus, query: RouteQuery) -> Ineligibility | None:
    """Why a model there cannot answer as is asked."""
    if status.abilities is None:
        if not query.structured:
            return None
        return Ineligibility("no_worker", "runs a release without reasoning, tools and schemas")
    missing = sorted(query.abilities.difference(status.abilities))
    if not missing:
        return None
    return Ineligibility("not_supported", f"has no {' and '.join(missing)} with {status.id}")


def _unmet(report: WorkerReport, requires: Requirements) -> str | None:
    hardware = report.hardware
    if requires.min_memory_gb is not None and hardware.memory_bytes < requires.min_memory_gb * 1e9:
        return f"has {hardware.memory_bytes / 1e9:.0f} GB of memory"
    if requires.chip is not None and requires.chip.lower() not in hardware.chip.lower():
        return f"has the chip {hardware.chip!r}"
    is_known = report.state != "starting"  # an engine tells
    if is_known and requires.accelerator not in (None, hardware.accelerator):
        return f"has the accelerator {hardware.accelerator!r}"
    for name, value in requires.labels.items():
        if report.labels.get(name) != value:
            return f"has the label {name}={report.labels.get(name)}"
    return None


def nearest(reasons: Sequence[R]) -> R:
    """Of the reasons why a request was not served, the one to tell its client: that of a worker
    which could serve it, and of several such the one that passes first, since that is when to send
    the request again. The first of those that are alike.

    Raises:
        ValueError: there are no reasons.
    """
    codes = {reason.code for reason in reasons}
    for far in _FAR:
        if len(codes) > 1:
            codes.discard(far)
    return min((one for one in reasons if one.code in codes), key=_passes_after_ms)


def _passes_after_ms(reason: Reason) -> float:
    return math.inf if reason.retry_after_ms is None else reason.retry_after_ms


def _message(query: RouteQuery, ineligibilities: Ineligibilities) -> str:
    wanted = " or ".join(query.models)
    if not ineligibilities:
        return f"no worker is there that could serve {wanted}"
    named = sorted(ineligibilities.items())[:_MOST_NAMED]
    reasons = "; ".join(f"{worker} {found.reason}" for worker, found in named)
    others = len(ineligibilities) - len(named)
    more = f"; and {others} others" if others else ""
    return f"no worker can serve {wanted} now: {reasons}{more}"
