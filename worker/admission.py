"""From the queue to an engine: who is next, and where it goes."""

import time
from collections import Counter
from collections.abc import Sequence

from shared.ids import ModelId
from shared.messages.events import QueueStatus
from shared.messages.prefixes import PrefixIndex
from shared.messages.request import PRIORITIES, Priority
from shared.settings.tree import Worker
from worker.active_request import ActiveRequest
from worker.engine_choice import EngineChoice
from worker.engine_process import EngineProcess
from worker.models.catalogue import ModelCatalogue
from worker.queue_figures import QueueFigures
from worker.request_queue import RequestQueue

_LEAST_AHEAD = 2
_SHARE_AHEAD = 4


class Admission:
    """The requests that wait, and the places in engines.

    An engine gets somewhat more than may decode at once, so that it has the next prompts at
    hand, and no more than that: here they can still be ordered, dropped and counted.
    """

    def __init__(
        self, settings: Worker, models: ModelCatalogue, engines: Sequence[EngineProcess]
    ) -> None:
        self._models = models
        self._most_rows = settings.continuous_batching.most_rows
        queue = settings.request_queue
        self._queue: RequestQueue[ActiveRequest] = RequestQueue(
            queue.max_depth,
            levels=queue.priority_levels,
            promote_after_s=queue.promote_after_ms / 1000,
            reject_when_full=queue.reject_when_full,
        )
        self._figures = QueueFigures(time.monotonic)
        self._prefixes = PrefixIndex()  # of what runs
        self._choice = EngineChoice(engines, self._most)

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
        room = {level: self._queue.room(level) for level in PRIORITIES}
        return self._figures.status(queued, room)

    # Waiting.

    def rejects(self, level: Priority) -> bool:
        """Whether there is no place for one more request of a priority; if so, it is counted."""
        if self._queue.room(level) > 0:
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

    def leave_queue(self, request: ActiveRequest) -> None:
        """A request ended before it was admitted; others are ignored."""
        if self._queue.remove(request):
            self._figures.left()

    # Places in engines.

    def next(self) -> tuple[ActiveRequest, EngineProcess] | None:
        """Take the request that is next from the queue and give it a place; None where nobody
        waits, or no place is free for those who do."""
        open_to: dict[tuple[ModelId, bool], bool] = {}

        def admissible(request: ActiveRequest) -> bool:
            kind = request.model, request.urgent
            if kind not in open_to:
                open_to[kind] = self._engine_for(request) is not None
            return open_to[kind]

        request = self._queue.pop(admissible, lambda r: self._prefixes.shared(r.prefixes))
        if request is None:
            return None
        engine = self._engine_for(request)
        assert engine is not None
        request.admit(engine.index)
        self._choice.came(engine.index, request.model, len(request.choices), request.session)
        self._figures.admitted(request.level, request.wait_s)
        self._prefixes.add(request.prefixes)
        return request, engine

    def leave_place(self, engine: int, model: ModelId) -> None:
        """A sequence left its engine."""
        self._choice.went(engine, model)

    def forget_prefixes(self, request: ActiveRequest) -> None:
        """A request that was admitted has ended."""
        self._prefixes.remove(request.prefixes)

    def _engine_for(self, request: ActiveRequest) -> EngineProcess | None:
        holders = self._models[request.model].engines
        return self._choice.choose(request.model, holders, request.session, urgent=request.urgent)

    def _most(self, engine: EngineProcess, model: ModelId, urgent: bool) -> int:
        """Sequences of a model that an engine may have."""
        limits = (batch.limit for batch in engine.measured.batches if batch.model == model)
        limit = next(limits, self._most_rows)
        if urgent:
            return self._most_rows
        return min(self._most_rows, limit + max(_LEAST_AHEAD, limit // _SHARE_AHEAD))
