"""The workers and controllers that are alive, by their reports.

Plain data and a clock passed in: no I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from controller.fleet.circuit_breaker import CircuitBreaker
from controller.fleet.worker_view import WorkerView
from shared.ids import BootId, ControllerId, ModelId, WorkerId
from shared.messages.controller_report import ControllerReport
from shared.messages.events import ControllerEvent, WorkerEvent
from shared.messages.worker_report import WorkerReport
from shared.settings.controller import CircuitBreakerSettings as BreakerLimits

_MAX_BREAKERS = 10_000
_RESTARTS_WITHIN_S = 10.0
"""A worker that ended often restarts within this time."""


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """One boot of a worker ended, was replaced, or sent no report for too long."""

    worker: WorkerId
    boot_id: BootId
    reason: str


@dataclass(frozen=True, slots=True)
class _Controller:
    report: ControllerReport
    seen_at: float


class NodeRegistry:
    """Every worker and controller that is alive.

    Attributes:
        on_trial: workers that run a version of the settings that is still on trial there.
    """

    def __init__(self, silence_limit_s: float, breakers: BreakerLimits | None = None) -> None:
        """
        Args:
            silence_limit_s: a worker or controller without a report for this time is removed.
            breakers: limits of the circuit breakers; None disables them.
        """
        self._silence_limit_s = silence_limit_s
        self._hung_after_s = silence_limit_s / 2
        self._workers: dict[WorkerId, WorkerView] = {}
        self._sorted: list[WorkerView] | None = None
        self._recently_gone: dict[WorkerId, tuple[WorkerView, float]] = {}
        self._holding: dict[ModelId, list[WorkerView]] = {}
        self._warm: dict[ModelId, list[WorkerView]] = {}
        self._reasoning: set[ModelId] = set()
        self._breaker_limits = breakers
        self._breakers: dict[WorkerId, CircuitBreaker] = {}
        self._controllers: dict[ControllerId, _Controller] = {}
        self.on_trial: frozenset[WorkerId] = frozenset()

    def configure(self, breakers: BreakerLimits) -> None:
        """Apply other limits; every breaker starts anew."""
        if breakers == self._breaker_limits:
            return
        self._breaker_limits = breakers
        self._breakers.clear()
        for view in self.workers:
            view.breaker = self._breaker(view.id)

    @property
    def workers(self) -> Sequence[WorkerView]:
        """All workers, sorted by id."""
        if self._sorted is None:
            self._sorted = sorted(self._workers.values(), key=lambda view: view.id)
        return self._sorted

    def workers_with(self, model: ModelId) -> Sequence[WorkerView]:
        """Return the workers that have a model, whatever its state, sorted by id."""
        if (found := self._holding.get(model)) is None:
            found = [view for view in self.workers if model in view.models]
            self._holding[model] = found
        return found

    def has_reasoning(self, models: Iterable[ModelId]) -> bool:
        """Whether one of these models generates reasoning, as reported by a worker that had it
        warm; that worker may be gone since."""
        return not self._reasoning.isdisjoint(models)

    def tripped_breakers(self, now: float) -> dict[WorkerId, Literal["half-open", "open"]]:
        """Return the breakers of known workers that are not closed."""
        found: dict[WorkerId, Literal["half-open", "open"]] = {}
        for view in self.workers:
            if view.breaker is not None and (state := view.breaker.state(now)) != "closed":
                found[view.id] = state
        return found

    def warm_workers_with(self, model: ModelId) -> Sequence[WorkerView]:
        """Return the workers that accept requests and have a model warm, sorted by id."""
        if (found := self._warm.get(model)) is None:
            found = [view for view in self.workers_with(model) if _is_warm(view.report, model)]
            self._warm[model] = found
        return found

    @property
    def controllers(self) -> list[ControllerReport]:
        return sorted((known.report for known in self._controllers.values()), key=lambda r: r.id)

    @property
    def refused_terms(self) -> list[int]:
        """The terms of the leaders for whom workers refuse the claims of this one."""
        return [view.refused_term for view in self.workers if view.refused_term is not None]

    def worker(self, worker: WorkerId) -> WorkerView | None:
        return self._workers.get(worker)

    def is_alive(self, worker: WorkerId, boot_id: BootId | None) -> bool:
        """Whether this boot of a worker is alive."""
        view = self._workers.get(worker)
        return view is not None and view.report.boot_id == boot_id

    def recently_gone(self, now: float) -> list[WorkerView]:
        """Return the last views of workers of which a boot ended in the last 10 s."""
        self._forget_gone(now)
        return [view for view, _ in self._recently_gone.values()]

    def last_gone_at(self, now: float) -> float | None:
        """Return when the last boot of a worker ended, if that is at most 10 s ago."""
        self._forget_gone(now)
        return max((at for _, at in self._recently_gone.values()), default=None)

    def _forget_gone(self, now: float) -> None:
        horizon = now - _RESTARTS_WITHIN_S
        gone = self._recently_gone
        self._recently_gone = {id: (view, at) for id, (view, at) in gone.items() if at > horizon}

    def on_worker_event(self, event: WorkerEvent, now: float) -> WorkerGone | None:
        """Apply a worker's event; returns a `WorkerGone` if a boot of the worker has ended."""
        report = event.worker
        known = self._workers.get(report.id)
        if event.type == "left":
            if known is None or known.report.boot_id != report.boot_id:
                return None
            self._remove(known, now)
            return WorkerGone(report.id, report.boot_id, "it shut down")
        if known is not None and known.report.boot_id == report.boot_id:
            if now - known.seen_at > self._hung_after_s:
                _merge_failures(known, now)
            if _index_state(known.report) != _index_state(report):
                self._models_changed(known.report, report)
            known.renew(report, now)
            return None
        if known is not None:
            _merge_failures(known, now)
            self._recently_gone[report.id] = known, now
        was_up = any(view.id == report.id and view.was_up for view in self.recently_gone(now))
        self._add(
            WorkerView(
                report,
                now,
                breaker=self._breaker(report.id),
                was_up=was_up,
                claimed=False,
            )
        )
        if known is not None:
            return WorkerGone(report.id, known.report.boot_id, "it restarted")
        return None

    def remove(self, worker: WorkerId, boot_id: BootId, now: float) -> bool:
        """Remove one boot of a worker; returns whether it was known."""
        view = self._workers.get(worker)
        if view is None or view.report.boot_id != boot_id:
            return False
        self._remove(view, now)
        return True

    def on_controller_event(self, event: ControllerEvent, now: float) -> None:
        report = event.controller
        if event.type == "left":
            self._controllers.pop(report.id, None)
        else:
            self._controllers[report.id] = _Controller(report, now)

    def remove_silent(self, horizon: float) -> Iterable[WorkerGone]:
        """Remove workers and controllers without a report since `horizon`; returns the workers."""
        for id in [id for id, known in self._controllers.items() if known.seen_at < horizon]:
            del self._controllers[id]
        silent = [view for view in self._workers.values() if view.seen_at < horizon]
        for view in silent:
            self._remove(view, horizon + self._silence_limit_s)
        reason = f"no report for {self._silence_limit_s:g} s"
        return [WorkerGone(view.id, view.report.boot_id, reason) for view in silent]

    def _add(self, view: WorkerView) -> None:
        self._workers[view.id] = view
        self._clear_indexes()
        self._record_reasoning(view.report)

    def _remove(self, view: WorkerView, now: float) -> None:
        _merge_failures(view, now)
        del self._workers[view.id]
        self._recently_gone[view.id] = view, now
        self._clear_indexes()

    def _clear_indexes(self) -> None:
        self._sorted = None
        self._holding.clear()
        self._warm.clear()

    def _models_changed(self, before: WorkerReport, after: WorkerReport) -> None:
        for model in {status.id for report in (before, after) for status in report.models}:
            self._holding.pop(model, None)
            self._warm.pop(model, None)
        self._record_reasoning(after)

    def _record_reasoning(self, report: WorkerReport) -> None:
        self._reasoning |= {
            status.id
            for status in report.models
            if status.state == "warm" and "reasoning" in (status.abilities or ())
        }

    def _breaker(self, worker: WorkerId) -> CircuitBreaker | None:
        """Return the breaker of a worker. The breaker survives restarts, so that a worker
        which crashes on every request stays blocked."""
        if self._breaker_limits is None or not self._breaker_limits.enabled:
            return None
        if worker not in self._breakers:
            if len(self._breakers) >= _MAX_BREAKERS:
                del self._breakers[next(iter(self._breakers))]
            self._breakers[worker] = CircuitBreaker(self._breaker_limits)
        return self._breakers[worker]


def _merge_failures(view: WorkerView, now: float) -> None:
    """Count the failures since the worker's last report as one: one cause is assumed."""
    if view.breaker is not None:
        view.breaker.count_as_one_failure(view.seen_at, now)


def _index_state(report: WorkerReport) -> list[object]:
    """The part of a report that decides in which indexes a worker is."""
    return [report.state, *((status.id, status.state) for status in report.models)]


def _is_warm(report: WorkerReport, model: ModelId) -> bool:
    if report.state not in ("ready", "warming"):
        return False
    return any(status.id == model and status.state == "warm" for status in report.models)
