"""Admission: which request leaves the queue next, and which engine gets it."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from shared.ids import ClientName, ModelId, SessionKey
from shared.messages.base import PRIORITIES, Priority
from shared.messages.prefixes import PrefixChainSet
from shared.messages.worker_report import QueueStatus
from shared.request_queue import PriorityQueue
from shared.settings.worker import RequestQueueSettings as RequestQueueSettings
from shared.settings.worker import WorkerSettings
from worker.engine_process.blas_threads import BlasThreadAllocator, shared_cores
from worker.engine_process.process import EngineProcess
from worker.models.worker_models import ModelCatalogue
from worker.requests.active_request import ActiveRequest
from worker.requests.isolation import FailureIsolation
from worker.scheduling.drain_rate import DrainRate
from worker.scheduling.engine_costs import Cost, EngineCostEstimator
from worker.scheduling.engine_selection import EngineSelector
from worker.scheduling.prefetch import PrefetchAssignments
from worker.scheduling.queue_statistics import QueueStatistics
from worker.scheduling.suspect_admission import SuspectAdmission

_LEAST_AHEAD = 2
_SHARE_AHEAD = 4
_PATIENCE_S = 10.0
_MAX_INPUTS = 256
"""An engine gets a request with texts to embed while it has fewer texts than this: enough for full
passes, and few enough that urgent requests wait for little."""
_MAX_PREFETCHES = 2
"""Maximum number of queued requests for which one engine prefetches."""


class _Kind(NamedTuple):
    """The properties of a request that decide whether there is a slot for it."""

    model: ModelId
    urgent: bool
    generates: bool
    embeds: bool
    suspect: bool


def _kind(request: ActiveRequest) -> _Kind:
    generates, embeds = request.generates, request.embeds
    return _Kind(request.model, request.urgent, generates, embeds, request.suspect)


class AdmissionQueue:
    """The queue of requests, and the slots of engines.

    An engine gets slightly more requests than it may decode at once, so that it can prefill the
    next prompts. All others stay in this queue, where they can still be reordered, dropped and
    counted.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        models: ModelCatalogue,
        engines: Sequence[EngineProcess],
        costs: EngineCostEstimator,
        isolation: FailureIsolation,
    ) -> None:
        self._models = models
        self._most_rows = settings.continuous_batching.max_rows
        queue = settings.request_queue
        self._queue: PriorityQueue[ActiveRequest, _Kind] = PriorityQueue(
            queue.max_depth,
            kind=_kind,
            levels=queue.priority_levels,
            promote_after_s=queue.promote_after_ms / 1000,
            reject_when_full=queue.reject_when_full,
        )
        self._max_wait_s = None if queue.max_wait_ms is None else queue.max_wait_ms / 1000
        self._statistics = QueueStatistics(time.monotonic)
        self._drain = DrainRate(time.monotonic)
        self._prefixes = PrefixChainSet()  # of running requests
        self._running = Counter[ClientName]()
        self._engines = engines
        self._selection = EngineSelector(engines, self._max_sequences)
        self._threads = BlasThreadAllocator(engines, shared_cores(settings.engines))
        self._costs = costs
        self._prefetch_planner = PrefetchAssignments(isolation)
        self._quarantine = SuspectAdmission()

    def configure(self, settings: RequestQueueSettings) -> None:
        """Apply other limits; requests that wait already stay in the queue."""
        self._queue.configure(
            settings.max_depth,
            promote_after_s=settings.promote_after_ms / 1000,
            reject_when_full=settings.reject_when_full,
        )
        self._max_wait_s = None if settings.max_wait_ms is None else settings.max_wait_ms / 1000

    def __len__(self) -> int:
        """Number of queued requests."""
        return len(self._queue)

    @property
    def max_depth(self) -> int:
        return self._queue.max_depth

    def queued_by_model(self) -> Counter[ModelId]:
        return Counter(request.model for request in self._queue)

    def status(self) -> QueueStatus:
        queued = Counter(request.level for request in self._queue)
        capacity = {level: self.capacity(level) for level in PRIORITIES}
        return self._statistics.status(queued, capacity)

    # Queue.

    def capacity(self, level: Priority, client: ClientName | None = None) -> int:
        """Return how many more requests of a priority may wait, of that client or of one that has
        none here: the free entries of the queue, and, if the waiting time is limited, not more than
        can be admitted in time."""
        free, rate = self._queue.capacity(level, client), self._drain.per_s
        if self._max_wait_s is None or rate is None:
            return free
        in_time = max(1, int(rate * self._max_wait_s))
        ahead = sum(self._waits_for_slot(request) for request in self._queue.ahead_of(level))
        return min(free, max(0, in_time - ahead))

    def rejects(self, level: Priority, client: ClientName) -> bool:
        """Whether the queue has no capacity for one more request of a priority of this client;
        counts the rejection."""
        if self.capacity(level, client) > 0:
            return False
        self._statistics.rejected(level)
        return True

    def push(self, request: ActiveRequest) -> ActiveRequest | None:
        """Queue a request for which there is capacity; returns the request of lower priority that
        a full queue dropped for it."""
        dropped = self._queue.push(request, request.times.received_at)
        assert dropped is not request
        if dropped is not None:
            self._statistics.dropped(dropped.level)
        return dropped

    def retry_after_ms(self) -> int:
        """Return when a rejected request may be sent again."""
        return self._statistics.book_retry_ms()

    def promote(self, now: float) -> None:
        """Raise the priority of requests that have waited long."""
        for promoted in self._queue.promote(now):
            self._statistics.promoted(promoted.level)

    def overdue(self, now: float) -> list[ActiveRequest]:
        """Return the requests that have waited for a slot for the maximum time, and count them as
        dropped."""
        if self._max_wait_s is None:
            return []
        since = now - self._max_wait_s
        overdue = [
            request
            for request in self._queue
            if self._waits_for_slot(request)
            and max(request.times.received_at, self._models[request.model].warm_at) <= since
        ]
        for request in overdue:
            self._statistics.dropped(request.level)
        return overdue

    def leave_queue(self, request: ActiveRequest) -> None:
        """Remove a request that ended from the queue, if it was not admitted yet."""
        self._prefetch_planner.forget(request)
        if self._queue.remove(request):
            self._statistics.left()

    # Slots.

    def set_home(self, session: SessionKey, engine: int) -> None:
        """Record that an engine caches a session; its next turn goes there if possible."""
        self._selection.set_home(session, engine)

    def next(self) -> tuple[ActiveRequest, EngineProcess] | None:
        """Admit the next request of the queue to an engine; None if no request waits, or no slot
        is free for those that wait."""
        affinity = self._session_affinity
        request = (
            self._queue.pop(self._has_slot, affinity=affinity)
            or self._queue.pop(self._has_slot_for_newcomers, self._is_newcomer, affinity)
            or self._queue.pop(self._has_spare_slot, self._has_waited_long, affinity)
        )
        if request is None:
            for_a_slot = self._queue.upcoming(self._is_warm)
            self._drain.observe(waiting=any(True for _ in for_a_slot))
            return None
        self._drain.admitted()
        request.is_newcomer = self._is_newcomer(request)
        engine = self._engine_for(request)
        assert engine is not None
        self._running[request.client] += 1
        request.admit(engine.index)
        self._selection.add(engine.index, request.model, len(request.choices), request.session)
        self._threads.share(self._selection.sequences)
        self._statistics.admitted(request.level, request.times.wait_s)
        self._prefixes.add(request.prefixes)
        self._costs.on_admitted(request, engine.index)
        self._prefetch_planner.on_admitted(request, engine)
        self._quarantine.on_admitted(request)
        return request, engine

    def release_slot(self, engine: int, model: ModelId) -> None:
        """Release the slot of a sequence that left its engine."""
        self._selection.remove(engine, model)
        self._threads.share(self._selection.sequences)

    def on_ended(self, request: ActiveRequest) -> None:
        """Forget an admitted request that has ended."""
        self._running[request.client] -= 1
        if not self._running[request.client]:
            del self._running[request.client]
        self._prefixes.remove(request.prefixes)
        self._costs.on_ended(request)
        self._quarantine.on_ended(request)

    # Prefetch.

    def prefetch(self) -> None:
        """Predict which requests each engine gets next, and have it prefetch for those."""
        ahead: Counter[int] = Counter()
        expected: dict[ActiveRequest, EngineProcess] = {}
        upcoming = self._queue.upcoming(self._is_held, affinity=self._session_affinity)
        for request in islice(upcoming, _MAX_PREFETCHES * len(self._engines)):
            engine = self._expected_engine(request, ahead)
            if engine is not None and ahead[engine.index] < _MAX_PREFETCHES:
                expected[request] = engine
                ahead[engine.index] += 1
        self._prefetch_planner.update(expected)

    def on_engine_lost(self, engine: EngineProcess) -> None:
        self._prefetch_planner.on_engine_lost(engine)

    def _is_held(self, kind: _Kind) -> bool:
        """Whether an engine holds the model, and the request needs a prefix."""
        return bool(self._models[kind.model].engines) and kind.generates

    def _expected_engine(self, request: ActiveRequest, ahead: Counter[int]) -> EngineProcess | None:
        """Predict the engine of a request; one that prefetches for it already remains the
        prediction while it holds the model."""
        holders = self._models[request.model].engines
        engine = self._prefetch_planner.engine_of(request)
        if engine is not None and engine.index in holders and engine.state == "running":
            return engine
        return self._selection.least_busy(holders, request.session, ahead, self._costs.of(request))

    def _session_affinity(self, request: ActiveRequest) -> int:
        return self._prefixes.shared(request.prefixes)

    def _waits_for_slot(self, request: ActiveRequest) -> bool:
        """Whether a request waits for a slot, and not for its model to be loaded."""
        return self._models[request.model].state == "warm"

    def _is_warm(self, kind: _Kind) -> bool:
        return self._models[kind.model].state == "warm"

    def _has_slot(self, kind: _Kind) -> bool:
        return self._choose(kind) is not None

    def _has_waited_long(self, request: ActiveRequest) -> bool:
        """Whether a request has waited so long that it may preempt the slot of a decoding row; its
        engine decides when."""
        waited_s = time.monotonic() - request.times.received_at
        return waited_s >= _PATIENCE_S

    def _is_newcomer(self, request: ActiveRequest) -> bool:
        """Whether other clients have running requests, and this one has none: its engine preempts
        the slot of a client that has several."""
        return bool(self._running) and request.client not in self._running

    def _has_spare_slot(self, kind: _Kind) -> bool:
        return self._choose(kind._replace(urgent=True), extra=self._spare_slots) is not None

    def _has_slot_for_newcomers(self, kind: _Kind) -> bool:
        return self._choose(kind._replace(urgent=True), extra=2 * self._spare_slots) is not None

    @property
    def _spare_slots(self) -> int:
        """Extra sequences of a full engine, for requests that have waited long, and as many more
        for newcomers."""
        return _ahead_of(self._most_rows)

    def _engine_for(self, request: ActiveRequest) -> EngineProcess | None:
        kind, cost = _kind(request), self._costs.of(request)
        found = self._choose(kind, request.session, cost)
        if found is None:
            kind = kind._replace(urgent=True)
            extra = self._spare_slots * (2 if request.is_newcomer else 1)
            found = self._choose(kind, request.session, cost, extra=extra)
        return found

    def _choose(
        self,
        kind: _Kind,
        session: SessionKey | None = None,
        cost: Cost | None = None,
        *,
        extra: int = 0,
    ) -> EngineProcess | None:
        """Return an engine with a slot. Whether there is one depends on the kind alone."""
        if kind.suspect and not self._quarantine.admits(kind.model):
            return None
        holders = self._models[kind.model].engines
        if kind.embeds:
            return self._selection.choose(kind.model, holders)
        if not kind.generates:
            return self._selection.least_busy(holders)
        return self._selection.choose(
            kind.model, holders, session, urgent=kind.urgent, extra=extra, cost=cost
        )

    def _max_sequences(self, engine: EngineProcess, model: ModelId, urgent: bool) -> int:
        """Return how many sequences of a model an engine may have."""
        if self._models[model].embeds:
            return _MAX_INPUTS
        if urgent:
            return self._most_rows
        limits = (batch.limit for batch in engine.measured.batches if batch.model == model)
        limit = next(limits, self._most_rows)
        return min(self._most_rows, limit + _ahead_of(limit))


def _ahead_of(rows: int) -> int:
    """Return how many sequences an engine gets beyond those that may decode at once, so that it
    can prefill the next prompts."""
    return max(_LEAST_AHEAD, rows // _SHARE_AHEAD)
