"""Which workers and controllers there are, from what they say of themselves.

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

_MOST_BREAKERS = 10_000
_RETURNS_WITHIN_S = 10.0
"""A worker that ended is often started again within this time."""


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """One boot of a worker ended, was replaced, or fell silent."""

    worker: WorkerId
    boot_id: BootId
    reason: str


@dataclass(frozen=True, slots=True)
class _Controller:
    report: ControllerReport
    seen_at: float
    protocol: int


class Registry:
    """Every worker and controller that is alive.

    Attributes:
        on_trial: workers with settings that have not proved themselves there.
    """

    def __init__(self, silence_limit_s: float, breakers: BreakerLimits | None = None) -> None:
        """Without `breakers` no worker is left alone for its failures."""
        self._silence_limit_s = silence_limit_s
        self._hung_s = silence_limit_s / 2
        self._workers: dict[WorkerId, WorkerView] = {}
        self._sorted: list[WorkerView] | None = None
        self._gone_lately: dict[WorkerId, tuple[WorkerView, float]] = {}
        self._holding: dict[ModelId, list[WorkerView]] = {}
        self._warm: dict[ModelId, list[WorkerView]] = {}
        self._reasoning: set[ModelId] = set()
        self._breaker_limits = breakers
        self._breakers: dict[WorkerId, CircuitBreaker] = {}
        self._controllers: dict[ControllerId, _Controller] = {}
        self.on_trial: frozenset[WorkerId] = frozenset()

    def configure(self, breakers: BreakerLimits) -> None:
        """Hold other limits; what workers did before is forgotten."""
        if breakers == self._breaker_limits:
            return
        self._breaker_limits = breakers
        self._breakers.clear()
        for view in self.workers:
            view.breaker = self._breaker(view.id)

    @property
    def workers(self) -> Sequence[WorkerView]:
        """In the order of their ids."""
        if self._sorted is None:
            self._sorted = sorted(self._workers.values(), key=lambda view: view.id)
        return self._sorted

    def holding(self, model: ModelId) -> Sequence[WorkerView]:
        """The workers that have a model, whatever its state, in the order of their ids."""
        if (found := self._holding.get(model)) is None:
            found = [view for view in self.workers if model in view.models]
            self._holding[model] = found
        return found

    def has_reasoning(self, models: Iterable[ModelId]) -> bool:
        """Whether one of these thinks, as a worker said that served it; it may be gone since."""
        return not self._reasoning.isdisjoint(models)

    def breakers(self, now: float) -> dict[WorkerId, Literal["half-open", "open"]]:
        """Of workers that are here, those that are not closed."""
        found: dict[WorkerId, Literal["half-open", "open"]] = {}
        for view in self.workers:
            if view.breaker is not None and (state := view.breaker.state(now)) != "closed":
                found[view.id] = state
        return found

    def warm(self, model: ModelId) -> Sequence[WorkerView]:
        """The workers that take requests and have a model warm, in the order of their ids."""
        if (found := self._warm.get(model)) is None:
            found = [view for view in self.holding(model) if _is_warm(view.report, model)]
            self._warm[model] = found
        return found

    @property
    def controllers(self) -> list[ControllerReport]:
        return sorted((each.report for each in self._controllers.values()), key=lambda r: r.id)

    @property
    def old_controllers(self) -> list[ControllerId]:
        """Those of a release in which every controller takes requests."""
        return sorted(id for id, each in self._controllers.items() if each.protocol < 2)

    @property
    def highest_term(self) -> int:
        """That any worker or controller told of."""
        terms = [view.report.term for view in self.workers]
        terms += [each.report.term for each in self._controllers.values()]
        return max(terms, default=0)

    def worker(self, worker: WorkerId) -> WorkerView | None:
        return self._workers.get(worker)

    def is_here(self, worker: WorkerId, boot_id: BootId | None) -> bool:
        """Whether a worker is there, in this boot."""
        view = self._workers.get(worker)
        return view is not None and view.report.boot_id == boot_id

    def gone_lately(self, now: float) -> list[WorkerView]:
        """Workers of which a boot ended a moment ago, as they were last."""
        horizon = now - _RETURNS_WITHIN_S
        gone = self._gone_lately
        self._gone_lately = {id: each for id, each in gone.items() if each[1] > horizon}
        return [view for view, _ in self._gone_lately.values()]

    def on_worker_event(self, event: WorkerEvent, now: float) -> WorkerGone | None:
        """Take in what a worker says; returns the end of a boot where that is what it means."""
        report = event.worker
        known = self._workers.get(report.id)
        if event.type == "left":
            if known is None or known.report.boot_id != report.boot_id:
                return None
            self._remove(known, now)
            return WorkerGone(report.id, report.boot_id, "it shut down")
        if known is not None and known.report.boot_id == report.boot_id:
            if now - known.seen_at > self._hung_s:
                _count_once(known, now)
            if _standing(known.report) != _standing(report):
                self._models_changed(known.report, report)
            known.renew(report, now)
            return None
        if known is not None:
            _count_once(known, now)
            self._gone_lately[report.id] = known, now
        was_up = any(view.id == report.id and view.was_up for view in self.gone_lately(now))
        self._add(
            WorkerView(
                report,
                now,
                breaker=self._breaker(report.id),
                was_up=was_up,
                protocol=event.protocol,
                claimed=False,
            )
        )
        if known is not None:
            return WorkerGone(report.id, known.report.boot_id, "it started again")
        return None

    def remove(self, worker: WorkerId, boot_id: BootId, now: float) -> bool:
        """Drop one boot of a worker; False where it is not there."""
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
            self._controllers[report.id] = _Controller(report, now, event.protocol)

    def forget_silent(self, horizon: float) -> Iterable[WorkerGone]:
        """Drop who has said nothing since; returns the workers among them."""
        for id in [id for id, each in self._controllers.items() if each.seen_at < horizon]:
            del self._controllers[id]
        silent = [view for view in self._workers.values() if view.seen_at < horizon]
        for view in silent:
            self._remove(view, horizon + self._silence_limit_s)
        reason = f"nothing was heard of it for {self._silence_limit_s:g} s"
        return [WorkerGone(view.id, view.report.boot_id, reason) for view in silent]

    def _add(self, view: WorkerView) -> None:
        self._workers[view.id] = view
        self._forget_lists()
        self._note_reasoning(view.report)

    def _remove(self, view: WorkerView, now: float) -> None:
        _count_once(view, now)
        del self._workers[view.id]
        self._gone_lately[view.id] = view, now
        self._forget_lists()

    def _forget_lists(self) -> None:
        self._sorted = None
        self._holding.clear()
        self._warm.clear()

    def _models_changed(self, before: WorkerReport, after: WorkerReport) -> None:
        for model in {status.id for report in (before, after) for status in report.models}:
            self._holding.pop(model, None)
            self._warm.pop(model, None)
        self._note_reasoning(after)

    def _note_reasoning(self, report: WorkerReport) -> None:
        self._reasoning |= {
            status.id
            for status in report.models
            if status.state == "warm" and "reasoning" in (status.abilities or ())
        }

    def _breaker(self, worker: WorkerId) -> CircuitBreaker | None:
        """It outlives the worker's boots: who dies of each request is not new each time."""
        if self._breaker_limits is None or not self._breaker_limits.enabled:
            return None
        if worker not in self._breakers:
            if len(self._breakers) >= _MOST_BREAKERS:
                del self._breakers[next(iter(self._breakers))]
            self._breakers[worker] = CircuitBreaker(self._breaker_limits)
        return self._breakers[worker]


def _count_once(view: WorkerView, now: float) -> None:
    """What a worker did not do since it was heard last has one cause."""
    if view.breaker is not None:
        view.breaker.one_cause(view.seen_at, now)


def _standing(report: WorkerReport) -> list[object]:
    """What decides in which lists a worker stands."""
    return [report.state, *((status.id, status.state) for status in report.models)]


def _is_warm(report: WorkerReport, model: ModelId) -> bool:
    if report.state not in ("ready", "warming"):
        return False
    return any(status.id == model and status.state == "warm" for status in report.models)
