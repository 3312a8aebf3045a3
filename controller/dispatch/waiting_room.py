"""Where requests wait for which no worker has capacity now: bounded in number and in time. Plain
state."""

from collections.abc import Callable, Hashable

from controller.requests.metrics import Totals
from controller.requests.request import ClientRequest
from controller.routing import NoRoute
from shared.messages.priorities import PRIORITIES, Priority
from shared.request_queue import PriorityQueue
from shared.settings.controller import WaitingRoomSettings as Limits


class WaitingRoom:
    """By priority, then in the order in which they came.

    Args:
        totals: counts who waits.

    Attributes:
        max_wait_s: how long any request should wait.
        enabled: also where nobody will return, but only has no capacity.
    """

    def __init__(self, limits: Limits, totals: Totals) -> None:
        self.max_wait_s = limits.max_wait_ms / 1000
        self.enabled = limits.enabled
        self._queue: PriorityQueue[ClientRequest, Hashable] = PriorityQueue(
            limits.max_depth, kind=lambda request: request.waiting_kind, reject_when_full=False
        )
        self._totals = totals
        totals.waiting = 0

    def configure(self, limits: Limits) -> None:
        """Hold other limits; who waits already stays."""
        self.max_wait_s, self.enabled = limits.max_wait_ms / 1000, limits.enabled
        self._queue.configure(limits.max_depth)

    def __len__(self) -> int:
        return len(self._queue)

    def ahead_of(self, level: Priority, kind: Hashable) -> NoRoute | None:
        """Why those wait whom a new request of this kind must not overtake; None where nobody
        does."""
        if kind is None or not len(self._queue):
            return None
        first = next(self._queue.upcoming(lambda each: each == kind), None)
        if first is None or PRIORITIES.index(first.level) > PRIORITIES.index(level):
            return None
        return first.no_route

    def enter(self, request: ClientRequest, now: float) -> ClientRequest | None:
        """Have a request wait; returns the one for which there is no room."""
        loser = self._queue.push(request, now)
        self._totals.waited += loser is not request
        self._totals.unplaced += loser not in (None, request)
        self._totals.waiting = len(self)
        return loser

    def leave(self, request: ClientRequest, *, in_vain: bool = False) -> None:
        """It waits no longer, if it did.

        Args:
            in_vain: no worker was found.
        """
        if request.request is not None and self._queue.remove(request):
            self._totals.unplaced += in_vain
            self._totals.waiting = len(self)

    def look(self, place_again: Callable[[ClientRequest], None]) -> None:
        """Try to find a worker for each in turn; of those who are alike, until one finds none."""
        in_vain: set[Hashable] = set()
        for request in list(self._queue):
            alike = request.waiting_kind, request.level
            if request.waiting_kind is None or alike not in in_vain:
                place_again(request)
                if request.state == "queued":
                    in_vain.add(alike)
