"""A worker as a controller sees it: its last report, and what was sent to the worker since."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.fleet.circuit_breaker import CircuitBreaker
from shared.ids import ClientName, ModelId, WorkerId
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import WorkerReport


class _Sent(NamedTuple):
    prefill_ms: float
    choices: int


@dataclass(slots=True, eq=False)
class WorkerView:
    """
    Attributes:
        seen_at: when the last report arrived, on the monotonic clock.
        unreported: requests that the last report cannot count: sent since, less ended since.
        unreported_choices: the choices (answers) that these requests ask for.
        unreported_ms: predicted time to prefill the prompts that were sent since.
        queue_full_count: requests rejected since then because the queue is full: each client is
            told to retry a little later than the one before.
        breaker: outlives the worker's boots.
        claimed: whether the worker accepts work of this leader.
        refused_term: the term of another leader, for whom the worker refuses the claim of this one.
        was_up: whether the worker has served before, in this boot or in one that ended a moment
            ago: a worker in state `starting` may be a restarted one.
        models: the worker's models by id.
        held: how many requests of each client this leader sent there, which have not ended.
    """

    report: WorkerReport
    seen_at: float
    unreported: int = 0
    unreported_choices: int = 0
    unreported_ms: float = 0.0
    queue_full_count: int = 0
    breaker: CircuitBreaker | None = None
    was_up: bool = False
    claimed: bool = True
    refused_term: int | None = None
    id: WorkerId = field(init=False)
    models: dict[ModelId, ModelStatus] = field(init=False)
    held: Counter[ClientName] = field(init=False, default_factory=Counter)
    _offered: dict[Hashable, _Sent] = field(init=False, default_factory=dict)
    _accepted: dict[Hashable, _Sent] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.id = self.report.id
        self.was_up = self.was_up or self.report.state != "starting"
        self.models = {status.id: status for status in self.report.models}

    @property
    def load(self) -> int:
        """Requests that the worker has, as far as known."""
        report = self.report
        return max(0, report.active_requests + report.queued_requests + self.unreported)

    @property
    def choices(self) -> int:
        """Batch slots that its requests use or wait for, as far as known."""
        return max(self.load, self.report.choices + self.unreported_choices)

    def renew(self, report: WorkerReport, now: float) -> None:
        """Apply a new report. The report counts every accepted request: the worker sent its answer
        first, on the same connection. The report may lack offers without an answer."""
        self.report, self.seen_at = report, now
        self.was_up = self.was_up or report.state != "starting"
        self.models = {status.id: status for status in report.models}
        self._accepted.clear()
        self.queue_full_count = 0
        self.unreported = len(self._offered)
        self.unreported_choices = sum(sent.choices for sent in self._offered.values())
        self.unreported_ms = sum(sent.prefill_ms for sent in self._offered.values())

    def reset_unreported(self) -> None:
        """Forget what was sent in the last term: a worker lists its requests when it is claimed."""
        self._offered.clear()
        self._accepted.clear()
        self.held.clear()
        self.claimed, self.refused_term = False, None
        self.unreported = self.unreported_choices = 0
        self.unreported_ms = 0.0
        if self.breaker is not None:
            self.breaker.abandon_all()

    def release(self, client: ClientName) -> None:
        """Count one request of a client less. Clients choose their names: none is kept at zero."""
        self.held[client] -= 1
        if self.held[client] <= 0:
            del self.held[client]

    def offered(self, request: Hashable, prefill_ms: float, choices: int = 1) -> None:
        """Record that a request was offered to the worker."""
        self._offered[request] = _Sent(prefill_ms, choices)
        self.unreported += 1
        self.unreported_choices += choices
        self.unreported_ms += prefill_ms

    def answered(self, request: Hashable, *, accepted: bool) -> None:
        """Record that the worker accepted or rejected an offer."""
        sent = self._offered.pop(request, None)
        if sent is None:
            return
        if accepted:
            self._accepted[request] = sent
        else:
            self.unreported -= 1
            self.unreported_choices -= sent.choices
            self.unreported_ms -= sent.prefill_ms

    def prefilled(self, request: Hashable) -> None:
        """Record that a prompt was prefilled; this may arrive before the answer to the offer."""
        for requests in (self._offered, self._accepted):
            if request in requests:
                sent = requests[request]
                self.unreported_ms -= sent.prefill_ms
                requests[request] = _Sent(0.0, sent.choices)

    def ended(self, request: Hashable, choices: int = 1) -> None:
        """Record that the worker no longer has a request that it accepted."""
        self.prefilled(request)
        self._accepted.pop(request, None)
        self.unreported -= 1
        self.unreported_choices -= choices
