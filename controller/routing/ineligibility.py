"""Which workers cannot serve a request, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from controller.fleet.worker_view import WorkerView
from controller.routing.route_query import RouteQuery
from shared.errors import Unavailable
from shared.ids import ModelId, WorkerId
from shared.messages.base import Priority
from shared.messages.model_status import ModelStatus, is_encoder
from shared.messages.request import Requirements
from shared.messages.worker_report import MEMORY_RETRY_AFTER_MS, WorkerReport, rejects
from shared.request_queue import reserve_of, reserved_for_others

_UNKNOWN_RETRY_MS = 1000
_LONGEST_RETRY_MS = 60_000
_MAX_NAMED = 10
"""Maximum number of workers that an error names; the others are counted."""

_LESS_RELEVANT = (
    "no_worker", "not_supported", "requirements_unmet", "model_unavailable", "draining",
    "not_claimed",
)  # fmt: skip
"""Codes of workers that are not worth waiting for if others have other codes; least relevant
first."""

TEMPORARY = frozenset({"queue_full", "memory_pressure", "circuit_open"})
"""Codes of conditions that pass by themselves."""


@dataclass(frozen=True, slots=True)
class Ineligibility:
    """Why a worker cannot serve a request; `code` is a key of `errors.ERROR_CODES`.

    Attributes:
        may_return: the worker may be available again soon, at an unknown time.
        is_starting: the worker starts for the first time.
    """

    code: str
    reason: str
    retry_after_ms: int | None = None
    may_return: bool = False
    is_starting: bool = False

    @property
    def is_temporary(self) -> bool:
        return self.code in TEMPORARY or self.may_return


class RefusalReason(Protocol):
    """Why a request was not served: an `Ineligibility`, a worker's rejection, or an error."""

    @property
    def code(self) -> str: ...

    @property
    def retry_after_ms(self) -> int | None: ...


R = TypeVar("R", bound=RefusalReason)

RECENTLY_GONE = Ineligibility("no_worker", "ended a moment ago", may_return=True)


Ineligibilities = Mapping[WorkerId, Ineligibility]


class NoRoute(Unavailable):
    """No worker can serve a request now.

    Attributes:
        is_temporary: whether waiting may help: a capable worker is only short of capacity, failed
            recently or may be back soon, or no worker has reported yet.
        no_workers: no worker is known at all, also none that ended a moment ago.
        may_return: whether a capable worker may be back soon, or no worker has reported yet.
        is_starting: whether a capable worker starts for the first time.
    """

    def __init__(
        self, query: RouteQuery, ineligibilities: Ineligibilities, *, no_workers: bool = False
    ) -> None:
        found = list(ineligibilities.values())
        code = most_relevant_reason(found).code if found else "no_worker"
        waits = [found.retry_after_ms for found in ineligibilities.values() if found.retry_after_ms]
        super().__init__(
            _message(query, ineligibilities),
            code=code,
            retry_after_ms=min(waits, default=None) if code != "no_worker" else None,
        )
        self.ineligibilities = ineligibilities
        self.no_workers = no_workers
        self.may_return = no_workers or any(found.may_return for found in ineligibilities.values())
        self.is_temporary = self.may_return or any(
            found.is_temporary for found in ineligibilities.values()
        )
        self.is_starting = any(found.is_starting for found in ineligibilities.values())


def find_ineligibility(
    view: WorkerView, model: ModelId, query: RouteQuery, now: float = 0.0
) -> Ineligibility | None:
    """Return why the worker cannot serve the model now; None if it can."""
    report = view.report
    if report.state not in ("starting", "ready", "warming"):
        code = "draining" if report.state == "draining" else "no_worker"
        return Ineligibility(code, f"is {report.state}")
    status = view.models.get(model)
    if status is None:
        return Ineligibility("no_worker", f"does not have {model}")
    if status.state == "failed":
        return Ineligibility("model_unavailable", f"could not load {model}: {status.error}")
    if query.requires is not None and (unmet := _unmet_requirement(report, query.requires)):
        return Ineligibility("requirements_unmet", unmet)
    if (missing := _missing_ability(status, query)) is not None:
        return missing
    if not view.claimed:
        return Ineligibility("not_claimed", "was not claimed yet", may_return=True)
    if report.state == "starting":
        return Ineligibility(
            "no_worker", "is starting", may_return=True, is_starting=not view.was_up
        )
    if view.breaker is not None and not view.breaker.admits(now):
        retry_after_ms = view.breaker.retry_after_ms(now) or _UNKNOWN_RETRY_MS
        return Ineligibility("circuit_open", "failed several times recently", retry_after_ms)
    return _short_of_memory(report, query.level) or _queue_full(view, query)


def is_capable(view: WorkerView, query: RouteQuery) -> bool:
    """Whether the worker could serve the request if it were healthy and had capacity."""
    statuses = (view.models.get(model) for model in query.models)
    if all(
        status is None or status.state == "failed" or _missing_ability(status, query) is not None
        for status in statuses
    ):
        return False
    return query.requires is None or _unmet_requirement(view.report, query.requires) is None


def _short_of_memory(report: WorkerReport, level: Priority) -> Ineligibility | None:
    if report.memory.pressure == "none" or not rejects(report.memory.pressure, level):
        return None
    reason = f"is short of memory ({report.memory.own_bytes / 1e9:.2f} GB held)"
    return Ineligibility("memory_pressure", reason, MEMORY_RETRY_AFTER_MS)


def _queue_full(view: WorkerView, query: RouteQuery) -> Ineligibility | None:
    """Compare the queue capacity of the last report with what was sent since. Older workers report
    only the depth of their queue."""
    report = view.report
    if not report.max_queue_depth:
        return None
    capacity = report.queue.room.get(query.level)
    if capacity is None:
        capacity = report.max_queue_depth - report.queued_requests
    if capacity > view.unreported + reserve_of(report.max_queue_depth):
        return None  # whoever asks
    if query.client is not None:
        capacity -= reserved_for_others(report.max_queue_depth, view.held.get(query.client, 0))
    if capacity > view.unreported or capacity > _queued_since(view):
        return None
    rate = report.queue.drain_per_s
    wait_ms = (1 + view.queue_full_count) * 1000 / rate if rate else _UNKNOWN_RETRY_MS
    retry_after_ms = min(round(wait_ms), _LONGEST_RETRY_MS)
    return Ineligibility(
        "queue_full", f"has {report.queued_requests} requests queued", retry_after_ms
    )


def _queued_since(view: WorkerView) -> int:
    """Return how many of the requests sent since the last report had to be queued."""
    report = view.report
    free_slots = 0 if report.queued_requests else max(0, report.max_batch_size - report.used_slots)
    over = max(view.unreported, view.unreported_choices) - free_slots
    return max(0, min(view.unreported, over))


def _missing_ability(status: ModelStatus, query: RouteQuery) -> Ineligibility | None:
    """Return why the model on this worker cannot answer as requested; None if it can."""
    if status.abilities is None:
        if not query.structured:
            return None
        return Ineligibility("no_worker", "runs a release without reasoning, tools and schemas")
    if query.generates and is_encoder(status.abilities):
        verb = "embeds" if "embedding" in status.abilities else "scores"
        return Ineligibility("not_supported", f"has {status.id}, which {verb} texts only")
    missing = sorted(query.abilities.difference(status.abilities))
    if not missing:
        return None
    return Ineligibility("not_supported", f"has no {' and '.join(missing)} with {status.id}")


def _unmet_requirement(report: WorkerReport, requires: Requirements) -> str | None:
    hardware = report.hardware
    if requires.min_memory_gb is not None and hardware.memory_bytes < requires.min_memory_gb * 1e9:
        return f"has {hardware.memory_bytes / 1e9:.0f} GB of memory"
    if requires.chip is not None and requires.chip.lower() not in hardware.chip.lower():
        return f"has the chip {hardware.chip!r}"
    is_known = report.state != "starting"  # known once an engine runs
    if is_known and requires.accelerator not in (None, hardware.accelerator):
        return f"has the accelerator {hardware.accelerator!r}"
    for name, value in requires.labels.items():
        if report.labels.get(name) != value:
            return f"has the label {name}={report.labels.get(name)}"
    return None


def most_relevant_reason(reasons: Sequence[R]) -> R:
    """Return the most relevant of the reasons why a request was not served, for its client: that of
    a worker which could serve it; of several such, the one that passes first, as that is when to
    send the request again; of equals, the first one.

    Raises:
        ValueError: there are no reasons.
    """
    codes = {reason.code for reason in reasons}
    for code in _LESS_RELEVANT:
        if len(codes) > 1:
            codes.discard(code)
    return min((reason for reason in reasons if reason.code in codes), key=_retry_after_ms)


def _retry_after_ms(reason: RefusalReason) -> float:
    return math.inf if reason.retry_after_ms is None else reason.retry_after_ms


def _message(query: RouteQuery, ineligibilities: Ineligibilities) -> str:
    models = " or ".join(query.models)
    if not ineligibilities:
        return f"no worker is available that could serve {models}"
    named = sorted(ineligibilities.items())[:_MAX_NAMED]
    reasons = "; ".join(f"{worker} {found.reason}" for worker, found in named)
    others = len(ineligibilities) - len(named)
    more = f"; and {others} others" if others else ""
    return f"no worker can serve {models} now: {reasons}{more}"
