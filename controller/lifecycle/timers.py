"""When the state machine has to act without an event: deadlines of requests, statuses for clients
that wait, retries of requests that wait for capacity."""

import math
from collections.abc import Callable

from controller.dispatch.dispatcher import Dispatcher, TriggerHandler
from controller.lifecycle.claimed_workers import REPUBLISHED_WITHIN_S
from controller.lifecycle.leader_term import LeaderTerm
from controller.lifecycle.request_adoption import QUIET_S
from controller.requests.deadlines import DeadlineHeap
from controller.requests.instructions import InstructionBuilder
from controller.requests.request import TrackedRequest
from controller.requests.store import RequestStore
from shared.ids import WorkerId
from shared.messages.stream import KEEP_ALIVE_S

_DEADLINE_GRACE_S = 5.0
"""A worker ends its requests at their deadline; the leader this much later."""
_FIRST_STATUS_S = 0.5
"""A client that waits gets its first status after this time."""
_CAPACITY_DELAY_S = 0.02
"""Changes of capacity within this time cause one retry of the requests that wait."""


class RequestTimers:
    """
    Args:
        fire: triggers an action for a request.
        claim: claims a worker.
    """

    def __init__(
        self,
        term: LeaderTerm,
        store: RequestStore,
        dispatcher: Dispatcher,
        instructions: InstructionBuilder,
        fire: TriggerHandler,
        claim: Callable[[WorkerId], None],
    ) -> None:
        self._term = term
        self._store = store
        self._dispatcher = dispatcher
        self._out = instructions
        self._fire = fire
        self._claim = claim
        self._due: DeadlineHeap[TrackedRequest] = DeadlineHeap()
        self._retry_at = math.inf

    @property
    def next_at(self) -> float:
        return min(self._due.next_at, self._retry_at)

    # Requests.

    def start(self, request: TrackedRequest) -> None:
        """Set the first timer of a request that arrived."""
        self._due.set(request, min(self._out.now + _FIRST_STATUS_S, request.deadline))

    def update(self, request: TrackedRequest) -> None:
        """Set the timer of a request to the next time at which there is something to do."""
        if self._is_served(request):
            self._due.set(request, max(self._out.now, self._next_at(request)))

    def expect_again(self, request: TrackedRequest) -> None:
        """Set the time until which the client of a lost request may publish it again."""
        self._due.drop(request)
        self._due.set(request, self._out.now + REPUBLISHED_WITHIN_S)

    def drop(self, request: TrackedRequest) -> None:
        self._due.drop(request)

    def pop_due(self) -> list[TrackedRequest]:
        return self._due.pop_due(self._out.now)

    def on_due(self, request: TrackedRequest) -> None:
        """Do what is due for a request, if anything, and set its next timer."""
        if not self._is_served(request):
            return
        now, state = self._out.now, request.state
        if now >= self._end_at(request):
            self._fire(request, "end_requested", request.deadline_exceeded())
        elif state == "running":
            if now >= request.reported_at + QUIET_S and request.worker is not None:
                self._claim(request.worker)
        elif state == "backing_off" and now >= request.wake_at:
            self._fire(request, "backoff_ended")
        elif state == "queued" and now >= request.wake_at:
            self._dispatcher.give_up_waiting(request)
        elif now >= _next_status_at(request):
            self._out.send_waiting_status(request, request.inboxes)
        self.update(request)

    def _is_served(self, request: TrackedRequest) -> bool:
        """Whether the request is served by workers; the list runner has timers of its own."""
        is_known = self._store.get(request.key) is request
        return is_known and request.state not in ("ended", "delegated")

    def _next_at(self, request: TrackedRequest) -> float:
        at = self._end_at(request)
        if request.state == "running":
            return min(at, max(request.reported_at, self._out.now - QUIET_S / 2) + QUIET_S)
        if request.state in ("queued", "backing_off"):
            at = min(at, request.wake_at)
        return min(at, _next_status_at(request))

    def _end_at(self, request: TrackedRequest) -> float:
        """Return when the leader ends the request, whatever its worker does."""
        if request.request is None:
            return math.inf
        at_worker = request.state in ("offered", "running")
        return request.deadline + (_DEADLINE_GRACE_S if at_worker else 0.0)

    # Requests that wait for capacity.

    def capacity_changed(self) -> None:
        if self._dispatcher.waiting and not self._term.shutting_down:
            self._retry_at = min(self._retry_at, self._out.now + _CAPACITY_DELAY_S)

    def retry_when_settled(self) -> None:
        """Retry once every live worker has reported its state."""
        settled_at = self._term.settled_at
        if self._dispatcher.waiting and not self._term.shutting_down and self._out.now < settled_at:
            self._retry_at = min(self._retry_at, settled_at)

    def stop_retries(self) -> None:
        self._retry_at = math.inf

    def retry_waiting(self) -> None:
        """Retry the requests that wait for capacity, if that is due."""
        if self._out.now >= self._retry_at:
            self._retry_at = math.inf
            self._dispatcher.retry_waiting()
            self.retry_when_settled()


def _next_status_at(request: TrackedRequest) -> float:
    """Return when a client that waits gets its next status."""
    is_first = request.updated_at == request.arrived_at
    return request.updated_at + (_FIRST_STATUS_S if is_first else KEEP_ALIVE_S)
