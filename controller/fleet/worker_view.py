"""A worker as a controller sees it: what it said last, and what was sent there since."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.fleet.circuit_breaker import CircuitBreaker
from shared.ids import ModelId, WorkerId
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import WorkerReport
from shared.version import PROTOCOL


class _Sent(NamedTuple):
    prefill_ms: float
    choices: int


@dataclass(slots=True, eq=False)
class WorkerView:
    """
    Attributes:
        seen_at: when it last said something, on the monotonic clock.
        unreported: requests that its last report cannot count: those sent there since, less those
            that ended since.
        unreported_choices: likewise the answers that they wait for.
        unreported_ms: until the prompts are computed that were sent there since, as predicted.
        queue_full_count: requests rejected since then as its queue is full: each was told to retry
            a little later than the one before.
        breaker: of the worker, over all its boots.
        protocol: that it speaks.
        claimed: it takes work of the controller that leads here.
        was_up: it has taken requests, in this boot or one that ended a moment ago: when it says
            that it starts, it is not new here.
        models: its models by name.
    """

    report: WorkerReport
    seen_at: float
    unreported: int = 0
    unreported_choices: int = 0
    unreported_ms: float = 0.0
    queue_full_count: int = 0
    breaker: CircuitBreaker | None = None
    was_up: bool = False
    protocol: int = PROTOCOL
    claimed: bool = True
    id: WorkerId = field(init=False)
    models: dict[ModelId, ModelStatus] = field(init=False)
    _asked: dict[Hashable, _Sent] = field(init=False, default_factory=dict)
    _taken: dict[Hashable, _Sent] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.id = self.report.id
        self.was_up = self.was_up or self.report.state != "starting"
        self.models = {status.id: status for status in self.report.models}

    @property
    def load(self) -> int:
        """Requests it has, as far as known."""
        report = self.report
        return max(0, report.active_requests + report.queued_requests + self.unreported)

    @property
    def choices(self) -> int:
        """Places in batches that its requests take or wait for, as far as known."""
        return max(self.load, self.report.choices + self.unreported_choices)

    def renew(self, report: WorkerReport, now: float) -> None:
        """It said something. What it took before, it has counted: its answer left before its
        report, on the same connection. What it has not answered yet, it may not have seen."""
        self.report, self.seen_at = report, now
        self.was_up = self.was_up or report.state != "starting"
        self.models = {status.id: status for status in report.models}
        self._taken.clear()
        self.queue_full_count = 0
        self.unreported = len(self._asked)
        self.unreported_choices = sum(sent.choices for sent in self._asked.values())
        self.unreported_ms = sum(sent.prefill_ms for sent in self._asked.values())

    def forget_sent(self) -> None:
        """Another term begins: what was sent there in the last one is told by the worker."""
        self._asked.clear()
        self._taken.clear()
        self.claimed = False
        self.unreported = self.unreported_choices = 0
        self.unreported_ms = 0.0
        if self.breaker is not None:
            self.breaker.abandon_all()

    def asked(self, request: Hashable, prefill_ms: float, choices: int = 1) -> None:
        """A request is on its way there."""
        self._asked[request] = _Sent(prefill_ms, choices)
        self.unreported += 1
        self.unreported_choices += choices
        self.unreported_ms += prefill_ms

    def answered(self, request: Hashable, *, took: bool) -> None:
        """It took a request that it was asked to take, or did not."""
        sent = self._asked.pop(request, None)
        if sent is None:
            return
        if took:
            self._taken[request] = sent
        else:
            self.unreported -= 1
            self.unreported_choices -= sent.choices
            self.unreported_ms -= sent.prefill_ms

    def began(self, request: Hashable) -> None:
        """It has computed the prompt of a request; that may be heard before its answer."""
        for known in (self._asked, self._taken):
            if request in known:
                sent = known[request]
                self.unreported_ms -= sent.prefill_ms
                known[request] = _Sent(0.0, sent.choices)

    def ended(self, request: Hashable, choices: int = 1) -> None:
        """A request that it took is there no longer."""
        self.began(request)
        self._taken.pop(request, None)
        self.unreported -= 1
        self.unreported_choices -= choices
