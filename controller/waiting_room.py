"""Where requests wait for which no worker has capacity now: bounded in number and in time. Plain
state."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from controller.metrics import Totals
from controller.request import Request
from controller.routing import NoRoute
from shared.messages.request import PRIORITIES, Priority
from shared.request_queue import RequestQueue
from shared.settings.tree import WaitingRoom as Limits


@dataclass(slots=True, eq=False)
class _Waiting:
    """
    Attributes:
        kind: who is alike here finds a worker where this one does; None where that cannot be said.
        error: why there was none when it was last tried.
    """

    request: Request
    level: Priority
    kind: Hashable
    error: NoRoute


class WaitingRoom:
    """By priority, then in the order in which they came.

    Args:
        totals: counts who waits.

    Attributes:
        max_wait_s: how long any request should wait.
    """

    def __init__(self, limits: Limits, totals: Totals) -> None:
        self.max_wait_s = limits.max_wait_ms / 1000
        self._queue: RequestQueue[_Waiting, Hashable] = RequestQueue(
            _depth(limits), kind=lambda waiting: waiting.kind, reject_when_full=False
        )
        self._by_request: dict[Request, _Waiting] = {}
        self._totals = totals
        totals.waiting = 0

    def configure(self, limits: Limits) -> None:
        """Hold other limits; who waits already stays."""
        self.max_wait_s = limits.max_wait_ms / 1000
        self._queue.configure(_depth(limits))

    def __len__(self) -> int:
        return len(self._queue)

    def ahead_of(self, level: Priority, kind: Hashable) -> NoRoute | None:
        """Why those wait whom a new request of this kind must not overtake; None where nobody
        does."""
        if kind is None or not self._by_request:
            return None
        first = next(self._queue.upcoming(lambda each: each == kind), None)
        if first is None or PRIORITIES.index(first.level) > PRIORITIES.index(level):
            return None
        return first.error

    def enter(
        self, request: Request, kind: Hashable, error: NoRoute, now: float
    ) -> tuple[Request, NoRoute] | None:
        """Have a request wait; returns the one for which there is no room, and why it waited."""
        assert request not in self._by_request
        waiting = _Waiting(request, request.contents.level, kind, error)
        loser = self._queue.push(waiting, now)
        if loser is not waiting:
            self._totals.waited += 1
            self._by_request[request] = waiting
        self._totals.waiting = len(self)
        if loser is None:
            return None
        self._by_request.pop(loser.request, None)
        self._totals.unplaced += loser is not waiting
        return loser.request, loser.error

    def leave(self, request: Request) -> bool:
        """It waits no longer; False where it did not."""
        waiting = self._by_request.pop(request, None)
        found = waiting is not None and self._queue.remove(waiting)
        self._totals.waiting = len(self)
        return found

    def give_up(self, request: Request) -> NoRoute | None:
        """It waited for too long; why there is no worker for it."""
        waiting = self._by_request.get(request)
        if waiting is None:
            return None
        self.leave(request)
        self._totals.unplaced += 1
        return waiting.error

    def look(self, place: Callable[[Request], NoRoute | None]) -> list[tuple[Request, NoRoute]]:
        """Try to find a worker for each in turn; `place` does so for one, or says why there is none.
        Returns those for which waiting does not help any more."""
        hopeless: set[Hashable] = set()
        lost: list[tuple[Request, NoRoute]] = []
        for waiting in list(self._queue):
            if waiting.kind is not None and (waiting.kind, waiting.level) in hopeless:
                continue
            error = place(waiting.request)
            if error is None:
                self.leave(waiting.request)
                continue
            waiting.error = error
            if waiting.kind is not None and not error.passes:
                self.leave(waiting.request)
                self._totals.unplaced += 1
                lost.append((waiting.request, error))
                continue
            hopeless.add((waiting.kind, waiting.level))
        return lost


def _depth(limits: Limits) -> int:
    return limits.max_depth if limits.enabled else 0
