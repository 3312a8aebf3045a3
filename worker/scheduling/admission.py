"""From the queue to an engine: who is next, and where it goes."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from shared.ids import ModelId, SessionKey
from shared.messages.prefixes import PrefixIndex
from shared.messages.priorities import PRIORITIES, Priority
from shared.messages.worker_report import QueueStatus
from shared.request_queue import PriorityQueue
from shared.settings.worker import RequestQueueSettings as RequestQueueSettings
from shared.settings.worker import WorkerSettings
from worker.engine_process.process import EngineProcess
from worker.engine_process.threads import EngineThreads, shared_cores
from worker.models.catalogue import ModelCatalogue
from worker.requests.active_request import ActiveRequest
from worker.scheduling.drain_rate import DrainRate
from worker.scheduling.engine_costs import Cost, EngineCosts
from worker.scheduling.engine_selection import EngineSelection
from worker.scheduling.prefetch import PrefetchPlanner
from worker.scheduling.quarantine import Quarantine
from worker.scheduling.queue_statistics import QueueStatistics

_LEAST_AHEAD = 2
_SHARE_AHEAD = 4
_PATIENCE_S = 10.0
_PREFETCHED = 2
"""So many of those who wait an engine is told of."""


class _Kind(NamedTuple):
    """What decides whether there is a slot for a request."""

    model: ModelId
    urgent: bool
    counts_only: bool
    suspect: bool


def _kind(request: ActiveRequest) -> _Kind:
    return _Kind(request.model, request.urgent, request.counts_only, request.suspect)


class Admission:
    """The requests that wait, and the places in engines.

    An engine gets somewhat more than may decode at once, so that it has the next prompts at
    hand, and no more than that: here they can still be ordered, dropped and counted.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        models: ModelCatalogue,
        engines: Sequence[EngineProcess],
        costs: EngineCosts,
    ) -> None:
        self._models = models
        self._most_rows = settings.continuous_batching.most_rows
        queue = settings.request_queue
        self._queue: PriorityQueue[ActiveRequest, _Kind] = PriorityQueue(
            queue.max_depth,
            kind=_kind,
            levels=queue.priority_levels,
            promote_after_s=queue.promote_after_ms / 1000,
            reject_when_full=queue.reject_when_full,
        )
        self._max_wait_s = None if queue.max_wait_ms is None else queue.max_wait_ms / 1000
        self._figures = QueueStatistics(time.monotonic)
        self._drain = DrainRate(time.monotonic)
        self._prefixes = PrefixIndex()  # of what runs
        self._engines = engines
        self._choice = EngineSelection(engines, self._most)
        self._threads = EngineThreads(engines, shared_cores(settings.engines))
        self._costs = costs
        self._prefetch_planner = PrefetchPlanner()
        self._quarantine = Quarantine()

    def configure(self, settings: RequestQueueSettings) -> None:
        """Hold other limits; who waits already stays."""
        self._queue.configure(
            settings.max_depth,
            promote_after_s=settings.promote_after_ms / 1000,
            reject_when_full=settings.reject_when_full,
        )
        self._max_wait_s = None if settings.max_wait_ms is None else settings.max_wait_ms / 1000

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def max_depth(self) -> int:
        return self._queue.max_depth

    def queued_by_model(self) -> Counter[ModelId]:
        return Counter(request.model for request in self._queue)

    def status(self) -> QueueStatus:
        queued = Counter(request.level for request in self._queue)
        room = {level: self.room(level) for level in PRIORITIES}
        return self._figures.status(queued, room)

    # Waiting.

    def room(self, level: Priority) -> int:
        """How many more requests of a priority may wait: as many as the queue has places, and,
        where the waiting time is bounded, as get their turn within it."""
        places, rate = self._queue.room(level), self._drain.per_s
        if self._max_wait_s is None or rate is None:
            return places
        in_time = max(1, int(rate * self._max_wait_s))
        ahead = sum(self._waits_for_a_place(request) for request in self._queue.ahead_of(level))
        return min(places, max(0, in_time - ahead))

    def rejects(self, level: Priority) -> bool:
        """Whether there is no place for one more request of a priority; if so, it is counted."""
        if self.room(level) > 0:
            return False
        self._figures.rejected(level)
        return True

    def push(self, request: ActiveRequest) -> ActiveRequest | None:
        """Have a request wait for which there is room; returns the one of lower priority that
        had to go for it."""
        loser = self._queue.push(request, request.received_at)
        assert loser is not request
        if loser is not None:
            self._figures.dropped(loser.level)
        return loser

    def retry_after_ms(self) -> int:
        """When somebody who found no place may come again."""
        return self._figures.book_retry_ms()

    def promote(self, now: float) -> None:
        """Have those rise who have waited long."""
        for risen in self._queue.promote(now):
            self._figures.promoted(risen.level)

    def overdue(self, now: float) -> list[ActiveRequest]:
        """Those who have waited for a place as long as anybody may, and have to go: counted."""
        if self._max_wait_s is None:
            return []
        since = now - self._max_wait_s
        overdue = [
            request
            for request in self._queue
            if self._waits_for_a_place(request)
            and max(request.received_at, self._models[request.model].warm_at) <= since
        ]
        for request in overdue:
            self._figures.dropped(request.level)
        return overdue

    def leave_queue(self, request: ActiveRequest) -> None:
        """A request ended, maybe before it was admitted."""
        self._prefetch_planner.forget(request)
        if self._queue.remove(request):
            self._figures.left()

    # Places in engines.

    def settle(self, session: SessionKey, engine: int) -> None:
        """An engine keeps what is kept of a session: it is to go there, if it can."""
        self._choice.settle(session, engine)

    def next(self) -> tuple[ActiveRequest, EngineProcess] | None:
        """Take the request that is next from the queue and give it a place; None where nobody
        waits, or no place is free for those who do."""
        request = self._queue.pop(self._has_slot, affinity=self._session_affinity)
        if request is None:
            request = self._queue.pop(
                self._has_spare_slot, self._has_waited_long, self._session_affinity
            )
        if request is None:
            for_a_slot = self._queue.upcoming(self._is_warm)
            self._drain.observe(waiting=any(True for _ in for_a_slot))
            return None
        self._drain.admitted()
        engine = self._engine_for(request)
        assert engine is not None
        request.admit(engine.index)
        self._choice.came(engine.index, request.model, len(request.choices), request.session)
        self._threads.share(self._choice.sequences)
        self._figures.admitted(request.level, request.wait_s)
        self._prefixes.add(request.prefixes)
        self._costs.came(request, engine.index)
        self._prefetch_planner.admitted(request, engine)
        self._quarantine.came(request)
        return request, engine

    def leave_place(self, engine: int, model: ModelId) -> None:
        """A sequence left its engine."""
        self._choice.went(engine, model)
        self._threads.share(self._choice.sequences)

    def forget_prefixes(self, request: ActiveRequest) -> None:
        """A request that was admitted has ended."""
        self._prefixes.remove(request.prefixes)
        self._costs.went(request)
        self._quarantine.went(request)

    # What engines are told of those who wait.

    def prefetch(self) -> None:
        """Tell engines who will come next, as far as can be said."""
        ahead: Counter[int] = Counter()
        expected: dict[ActiveRequest, EngineProcess] = {}
        upcoming = self._queue.upcoming(self._is_held, affinity=self._session_affinity)
        for request in islice(upcoming, _PREFETCHED * len(self._engines)):
            engine = self._expected(request, ahead)
            if engine is not None and ahead[engine.index] < _PREFETCHED:
                expected[request] = engine
                ahead[engine.index] += 1
        self._prefetch_planner.tell(expected)

    def on_engine_lost(self, engine: EngineProcess) -> None:
        """It knows nothing any more of those who wait."""
        self._prefetch_planner.lost(engine)

    def _is_held(self, kind: _Kind) -> bool:
        """Whether an engine holds the model and has a prompt to compute."""
        return bool(self._models[kind.model].engines) and not kind.counts_only

    def _expected(self, request: ActiveRequest, ahead: Counter[int]) -> EngineProcess | None:
        """One that was told of it stays that, while it holds the model."""
        holders = self._models[request.model].engines
        told = self._prefetch_planner.engine_of(request)
        if told is not None and told.index in holders and told.state == "running":
            return told
        return self._choice.least_busy(holders, request.session, ahead, self._costs.of(request))

    def _session_affinity(self, request: ActiveRequest) -> int:
        return self._prefixes.shared(request.prefixes)

    def _waits_for_a_place(self, request: ActiveRequest) -> bool:
        """And not for its model to be loaded, or for an earlier turn of its session."""
        return self._models[request.model].state == "warm"

    def _is_warm(self, kind: _Kind) -> bool:
        return self._models[kind.model].state == "warm"

    def _has_slot(self, kind: _Kind) -> bool:
        return self._choose(kind) is not None

    def _has_waited_long(self, request: ActiveRequest) -> bool:
        """So long that it may take the place of a row that decodes: its engine says when."""
        waited_s = time.monotonic() - request.received_at
        return waited_s >= _PATIENCE_S

    def _has_spare_slot(self, kind: _Kind) -> bool:
        return self._choose(kind._replace(urgent=True), extra=self._spare_slots) is not None

    @property
    def _spare_slots(self) -> int:
        """Of an engine all of whose rows are taken, for those that have waited long."""
        return _ahead_of(self._most_rows)

    def _engine_for(self, request: ActiveRequest) -> EngineProcess | None:
        kind, cost = _kind(request), self._costs.of(request)
        found = self._choose(kind, request.session, cost)
        if found is None:
            kind = kind._replace(urgent=True)
            found = self._choose(kind, request.session, cost, extra=self._spare_slots)
        return found

    def _choose(
        self,
        kind: _Kind,
        session: SessionKey | None = None,
        cost: Cost | None = None,
        *,
        extra: int = 0,
    ) -> EngineProcess | None:
        """An engine with a slot. Whether there is one depends on the kind alone."""
        if kind.suspect and not self._quarantine.admits(kind.model):
            return None
        holders = self._models[kind.model].engines
        if kind.counts_only:
            return self._choice.least_busy(holders)
        return self._choice.choose(
            kind.model, holders, session, urgent=kind.urgent, extra=extra, cost=cost
        )

    def _most(self, engine: EngineProcess, model: ModelId, urgent: bool) -> int:
        """Sequences of a model that an engine may have."""
        if urgent:
            return self._most_rows
        limits = (batch.limit for batch in engine.measured.batches if batch.model == model)
        limit = next(limits, self._most_rows)
        return min(self._most_rows, limit + _ahead_of(limit))


def _ahead_of(rows: int) -> int:
    """How many more an engine gets than may decode at once, so that it has the next prompts at
    hand."""
    return max(_LEAST_AHEAD, rows // _SHARE_AHEAD)
