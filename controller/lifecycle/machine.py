"""The state machine of requests: events in, instructions out; `controller.requests.transitions` is
its table.

The machine does not wait, reads no clock and does no I/O. The registry, routing, circuit breakers,
retry schedule, wait queue and dispatch queue are values that it queries. The actions of the table
are methods of `attempts`, `endings` and `client_queries`; `controller.dispatch.dispatcher` offers a
request to workers, `takeover` adopts the requests that workers have.
"""

import math
from collections.abc import Callable
from typing import assert_never

from controller.dispatch.dispatch_queue import DispatchQueue
from controller.dispatch.dispatcher import Dispatcher
from controller.dispatch.router import Router
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import NodeRegistry, WorkerGone
from controller.lifecycle.actions import actions_of
from controller.lifecycle.attempts import AttemptActions
from controller.lifecycle.client_limits import limit_exceeded
from controller.lifecycle.client_queries import QueryActions
from controller.lifecycle.endings import EndingActions
from controller.lifecycle.leader_term import LeaderTerm
from controller.lifecycle.request_adoption import RequestAdoption
from controller.lifecycle.request_list import list_requests
from controller.lifecycle.timers import RequestTimers
from controller.requests import events
from controller.requests.client_messages import failure
from controller.requests.events import Event
from controller.requests.instructions import Instruction, InstructionBuilder
from controller.requests.metrics import ControllerMetrics
from controller.requests.request import RequestKey, TrackedRequest
from controller.requests.session_queues import SessionQueues
from controller.requests.store import RequestStore
from controller.requests.transitions import LATE, TRANSITIONS, Trigger
from shared.ids import BootId, ControllerId, WorkerId
from shared.messages.dispatch import Dispatch
from shared.messages.request_events import (
    AttemptFailed,
    RequestCompleted,
    RequestEvent,
    TokensEmitted,
)
from shared.messages.request_list import RequestList, RequestListQuery
from shared.messages.stream import ErrorDetails
from shared.settings import ClusterSettings


class RequestStateMachine:
    """The requests of one leader, in one term.

    Attributes:
        metrics: of the controller.
        router: selects workers.
    """

    def __init__(
        self,
        controller: ControllerId,
        boot_id: BootId,
        term: int,
        settings: ClusterSettings,
        registry: NodeRegistry,
        prefixes: PrefixCacheIndex,
        metrics: ControllerMetrics,
        rng: Callable[[], float],
        *,
        max_bytes: int,
        now: float,
        settled_at: float,
        turns_wait_until: float = 0.0,
    ) -> None:
        """
        Args:
            term: the number of the term; attempts are numbered from there.
            rng: returns a random number from 0 to 1.
            max_bytes: of a message.
            settled_at: from then on every live worker has reported its state.
            turns_wait_until: turns of sessions start then at the earliest: before, it may not be
                known which turns run or are lost.
        """
        self.metrics = metrics
        self.router = Router(controller, settings, registry, prefixes, rng)
        self._term = LeaderTerm(term, settled_at)
        self._settings = settings
        self._registry = registry
        self._store = RequestStore()
        self._turns = SessionQueues()
        self._out = InstructionBuilder(controller, term, now)
        self._queue = DispatchQueue(
            controller, term, settings.controller.dispatch, max_bytes, metrics.totals
        )
        self._dispatcher = Dispatcher(
            settings, registry, prefixes, metrics, self.router, self._queue, self._out, rng,
            self._fire, settled_at=settled_at,
        )  # fmt: skip
        self._timers = RequestTimers(
            self._term, self._store, self._dispatcher, self._out, self._fire,
            lambda worker: self._takeover.claim(worker),
        )  # fmt: skip
        self._endings = EndingActions(
            self._term, self._store, self._turns, self._dispatcher, self._timers, metrics,
            self._out, self._start,
        )  # fmt: skip
        self._takeover = RequestAdoption(
            settings.skills, registry, prefixes, self._store, self._turns, self._out, boot_id,
            self._fire, self._adopted, self._endings.drop, turns_wait_until=turns_wait_until,
        )  # fmt: skip
        self._claims = self._takeover.claims
        self._queries = QueryActions(
            self._store, registry, self._claims, self._timers, self._out, self._arrive, self._fire
        )
        attempts = AttemptActions(
            self._term, self._dispatcher, self._takeover, self._timers, self._endings, self._out
        )
        self._actions = actions_of(attempts, self._dispatcher, self._endings, self._queries)
        self._is_claiming = self._claims.incomplete
        self._starts_at = self._claims.starts_at if self._is_claiming else self._turns_start_at

    def configure(self, settings: ClusterSettings) -> None:
        """Apply new settings from now on."""
        self._settings = settings
        self._takeover.skills = settings.skills
        self._dispatcher.configure(settings)

    # State.

    @property
    def term(self) -> int:
        return self._term.number

    @property
    def attempts_before(self) -> int:
        """The highest attempt number that earlier leaders may have used."""
        return self._term.attempts_before

    @property
    def active(self) -> int:
        """Number of requests of clients that have not ended; a list of prompts counts once."""
        return sum(request.part_of is None for request in self._store)

    @property
    def waiting(self) -> int:
        """Number of requests for which no worker has capacity."""
        return len(self._dispatcher.waiting)

    @property
    def offered(self) -> int:
        """Number of requests that were offered to a worker which has not answered."""
        return len(self._queue)

    @property
    def busy_workers(self) -> set[tuple[WorkerId, BootId]]:
        """The boots of workers that have requests, were offered requests, or did not answer."""
        busy = {
            (request.worker, request.boot_id)
            for request in self._store
            if request.worker is not None and request.boot_id is not None
        }
        return busy | self._dispatcher.unresponsive

    @property
    def next_due(self) -> float:
        """When `TimerFired` is due, at the latest."""
        return min(self._timers.next_at, self._queue.next_at, self._starts_at)

    def asked(self, number: int) -> tuple[WorkerId, BootId] | None:
        """Return the boot of a worker that was sent a message of dispatches, and has not answered
        it yet."""
        return self._queue.asked(number)

    def boot_of(self, worker: WorkerId) -> BootId | None:
        view = self._registry.worker(worker)
        return view.report.boot_id if view is not None else None

    def find(self, key: RequestKey) -> TrackedRequest | None:
        """Return a request that is served, or ended recently."""
        return self._store.get(key)

    def list_requests(self, query: RequestListQuery, now: float) -> RequestList:
        """Return the requests that have not ended, of one client or of all."""
        return list_requests(self._store, query, self._out.controller, now)

    def take_failovers_ms(self) -> dict[WorkerId, float]:
        """Return how long requests waited that had begun to answer on a worker which failed, until
        another worker continued: for each failed worker the longest time since the last call."""
        failovers_ms, self._dispatcher.failovers_ms = self._dispatcher.failovers_ms, {}
        return failovers_ms

    def transferable(self, now: float) -> list[Dispatch]:
        """Return the requests that no worker has, for the next leader, in the order of arrival."""
        return [
            request.transfer(now)
            for request in self._store
            if request.part_of is None and request.state not in ("offered", "running")
        ]

    # Events.

    def on(self, event: Event, now: float) -> list[Instruction]:
        """Return the instructions that follow from an event."""
        self._out.now = now
        self._store.forget_old(now)
        match event:
            case events.RequestEventsReceived():
                for reported in event.events:
                    self._on_reported(event.worker, event.boot_id, reported)
            case events.RequestReceived():
                self._on_published(event.request)
            case events.DispatchReplyReceived():
                outcomes = self._queue.answered(event.number, event.reply, now)
                self._dispatcher.on_outcomes(outcomes)
            case events.TimerFired():
                self._on_time_passed()
            case events.WorkerReported():
                self._dispatcher.clear_unresponsive(event.worker)
                self._takeover.on_report(event.worker)
                self._timers.capacity_changed()
            case WorkerGone():
                self._on_worker_gone(event)
            case events.StatusOrCancelReceived():
                self._queries.on_queried(event)
            case events.ClaimAnswered():
                self._takeover.on_claimed(event)
                self._timers.capacity_changed()
            case events.ClaimRefused():
                self._takeover.on_claim_refused(event)
            case events.RequestContentsReceived():
                self._takeover.on_contents(event)
            case events.SessionHistoryReceived():
                if (request := self._store.get(event.key)) is not None:
                    self._fire(request, "history_received", event.messages, event.too_large)
            case events.PromptListEnded():
                if (request := self._store.get(event.key)) is not None:
                    self._fire(request, "list_ended", event.end)
            case events.PromptListGrew():
                if (request := self._store.get(event.key)) is not None:
                    self._store.weigh(request, request.memory_bytes + event.more_bytes)
            case events.EndRequests():
                for request in self._store:
                    if event.key in (None, request.key):
                        self._fire(request, "end_requested", event.error)
            case events.RequestsTransferred():
                for request in event.requests:
                    self._on_published(request)
            case events.LinkRestored():
                self._takeover.claim_all()
            case events.ShutdownBegan():
                self._term.shutting_down = True
                self._timers.stop_retries()
            case _:
                assert_never(event)
        if self._is_claiming and not self._claims.incomplete:
            self._is_claiming = False
            self._queries.release_early_cancels()
            self._start_waiting()
        return self._out.take()

    def _fire(self, request: TrackedRequest, trigger: Trigger, *args: object) -> None:
        """Perform the action that the table has for a trigger in the state of a request."""
        action = TRANSITIONS[request.state].get(trigger)
        if action is not None:
            self._actions[action](request, *args)
        elif trigger not in LATE.get(request.state, ()):
            self._on_unexpected(request, trigger)

    def _on_unexpected(self, request: TrackedRequest, trigger: Trigger) -> None:
        """The table has no action: a fault of this controller, or of a worker."""
        self.metrics.unexpected(request.state, trigger)
        self._out.warn(f"{trigger} was not expected while {request.state}", request)

    # Published.

    def _on_published(self, request: TrackedRequest) -> None:
        known = self._store.get(request.key)
        if known is not None and known.fingerprint != request.fingerprint:
            message = f"request_id: {request.request_id!r} was used for another request"
            self._reject(request, ErrorDetails.of("request_id_conflict", message, "request_id"))
        elif known is not None:
            self._fire(known, "published_again", request)
        elif request.part_of is None and (error := self._limit_exceeded(request)) is not None:
            self._reject(request, error)
        else:
            self._arrive(request)

    def _limit_exceeded(self, request: TrackedRequest) -> ErrorDetails | None:
        return limit_exceeded(self._store, request, self._settings.security)

    def _reject(self, request: TrackedRequest, error: ErrorDetails) -> None:
        self._term.raise_attempt(request)
        self._out.send_to_client(request, failure(request, error), request.inboxes)
        self._out.end_trace(request, error.code, error.code)

    def _arrive(self, request: TrackedRequest, replaced: TrackedRequest | None = None) -> None:
        """Accept a request; `replaced` is the same one, from before it was lost or forgotten. One
        that has ended has no weight any more, so its limits hold as for a new one."""
        if replaced is not None and replaced.ended and (error := self._limit_exceeded(request)):
            self._reject(request, error)
            return
        self._store.add(request)
        self._turns.add(request, replaced)
        self.metrics.arrived(request)
        self._timers.start(request)
        self._start(request)

    def _adopted(self, request: TrackedRequest) -> None:
        self._timers.update(request)
        self.metrics.adopted()
        self._out.info(f"adopted from {request.worker}", request)

    def _start(self, request: TrackedRequest) -> None:
        """Start a request, or record why it waits."""
        if not self._turns.is_next(request):
            request.reason = "earlier_turn"
        elif self._term.shutting_down or not self._claims.may_start(
            self._out.now, turn=request.session is not None
        ):
            request.reason = "leader_change"
        else:
            self._fire(request, "may_begin")

    @property
    def _turns_start_at(self) -> float:
        """When turns start; infinite if they have."""
        turns_start_at = self._claims.turns_start_at
        return turns_start_at if self._out.now < turns_start_at else math.inf

    def _start_waiting(self) -> None:
        """Start the requests that waited for workers to answer their claims."""
        self._starts_at = self._turns_start_at
        for request in self._store:
            if request.state == "waiting":
                self._start(request)

    # Workers.

    def _on_reported(self, worker: WorkerId, boot_id: BootId, event: RequestEvent) -> None:
        request = self._store.get((event.client, event.request_id))
        if request is None or (request.worker, request.attempt) != (worker, event.attempt):
            return
        request.reported_at = self._out.now
        if request.state == "offered":  # the event overtook the answer to the dispatch
            self._fire(request, "offer_accepted", boot_id)
        match event:
            case TokensEmitted():
                self._fire(request, "tokens_emitted", event)
            case RequestCompleted():
                self._fire(request, "finished")
            case AttemptFailed(terminal_sent=True):
                self._fire(request, "failed", event)
            case AttemptFailed():
                self._fire(request, "requeued", event)

    def _on_worker_gone(self, gone: WorkerGone) -> None:
        self._out.warn(f"worker {gone.worker} is gone: {gone.reason}")
        self._dispatcher.clear_unresponsive(gone.worker)
        present = self._registry.worker(gone.worker)
        if present is None or not present.claimed:
            self._claims.reset(gone.worker, self._out.now)
        self._dispatcher.on_outcomes(self._queue.worker_gone(gone.worker, gone.boot_id))
        error = ErrorDetails.of("worker_lost", f"worker {gone.worker} is gone: {gone.reason}")
        for request in self._store:
            if request.worker == gone.worker and request.state == "running":
                if not self._registry.is_alive(gone.worker, request.boot_id):
                    self._fire(request, "worker_gone", error)

    # Time.

    def _on_time_passed(self) -> None:
        for request in self._timers.pop_due():
            if request.state == "lost":
                self._endings.give_up_lost(request)
            else:
                self._timers.on_due(request)
        if self._out.now >= self._starts_at:
            self._start_waiting()
        self._timers.retry_waiting()
        self._dispatcher.send_due()
