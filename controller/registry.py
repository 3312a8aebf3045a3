"""Which workers and controllers there are, from what they say of themselves.

Plain data and a clock passed in: no I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.ids import BootId, ControllerId, WorkerId
from shared.messages.events import ControllerEvent, ControllerReport, WorkerEvent, WorkerReport


@dataclass(slots=True)
class WorkerView:
    """A worker as this controller sees it.

    Attributes:
        seen_at: when it last said something, on the monotonic clock.
        unreported: requests sent there since its last report, which that cannot count.
        turned_away: requests that were told since then to come again, as its queue is full: each
            is to come for another place.
    """

    report: WorkerReport
    seen_at: float
    unreported: int = 0
    turned_away: int = 0

    @property
    def id(self) -> WorkerId:
        return self.report.id

    @property
    def load(self) -> int:
        """Requests it has, as far as known."""
        return self.report.active_requests + self.report.queued_requests + self.unreported


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """One boot of a worker ended, was replaced, or fell silent."""

    worker: WorkerId
    boot_id: BootId
    reason: str


class Registry:
    """Every worker and controller that is alive."""

    def __init__(self, silence_limit_s: float) -> None:
        self._silence_limit_s = silence_limit_s
        self._workers: dict[WorkerId, WorkerView] = {}
        self._controllers: dict[ControllerId, tuple[ControllerReport, float]] = {}

    @property
    def workers(self) -> list[WorkerView]:
        return sorted(self._workers.values(), key=lambda view: view.id)

    @property
    def controllers(self) -> list[ControllerReport]:
        return sorted((report for report, _ in self._controllers.values()), key=lambda r: r.id)

    def worker(self, worker: WorkerId) -> WorkerView | None:
        return self._workers.get(worker)

    def on_worker_event(self, event: WorkerEvent, now: float) -> WorkerGone | None:
        """Take in what a worker says; returns the end of a boot where that is what it means."""
        report = event.worker
        known = self._workers.get(report.id)
        if event.type == "left":
            if known is None or known.report.boot_id != report.boot_id:
                return None
            del self._workers[report.id]
            return WorkerGone(report.id, report.boot_id, "it shut down")
        self._workers[report.id] = WorkerView(report, now)
        if known is not None and known.report.boot_id != report.boot_id:
            return WorkerGone(report.id, known.report.boot_id, "it started again")
        return None

    def on_controller_event(self, event: ControllerEvent, now: float) -> None:
        if event.type == "left":
            self._controllers.pop(event.controller.id, None)
        else:
            self._controllers[event.controller.id] = (event.controller, now)

    def forget_silent(self, now: float, *, trusted_since: float) -> Iterable[WorkerGone]:
        """Drop who has said nothing for too long; returns the workers among them.

        Args:
            trusted_since: before that we could not have heard them.
        """
        horizon = now - self._silence_limit_s
        if trusted_since > horizon:
            return []
        for controller in [c for c, (_, seen) in self._controllers.items() if seen < horizon]:
            del self._controllers[controller]
        silent = [view for view in self._workers.values() if view.seen_at < horizon]
        for view in silent:
            del self._workers[view.id]
        reason = f"nothing was heard of it for {self._silence_limit_s:g} s"
        return [WorkerGone(view.id, view.report.boot_id, reason) for view in silent]
