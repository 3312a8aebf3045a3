"""When a request is dispatched again: once a worker has capacity, or some time after a failure."""

import sys
from collections.abc import Callable, Hashable

from controller.requests.metrics import DispatchCounts
from controller.requests.request import TrackedRequest
from controller.routing import NoRoute
from shared.messages.base import PRIORITIES, Priority
from shared.request_queue import PriorityQueue
from shared.settings.controller import RetrySettings
from shared.settings.controller import WaitingRoomSettings as Limits


class WaitQueue:
    """Requests by priority, then in the order of arrival. Interrupted requests go first, and are
    not subject to the limits: a worker had accepted them.

    Args:
        totals: counts the requests that wait.

    Attributes:
        max_wait_s: how long a request waits for capacity. An interrupted one waits until its
            deadline.
        enabled: whether requests wait for capacity. Requests always wait for a worker that is
            expected to return.
    """

    def __init__(self, limits: Limits, totals: DispatchCounts) -> None:
        self.max_wait_s = limits.max_wait_ms / 1000
        self.enabled = limits.enabled
        self._queue: PriorityQueue[TrackedRequest, Hashable] = PriorityQueue(
            limits.max_depth, kind=lambda request: request.waiting_kind, reject_when_full=False
        )
        self._interrupted: PriorityQueue[TrackedRequest, Hashable] = PriorityQueue(
            sys.maxsize, kind=lambda request: request.waiting_kind
        )
        self._totals = totals
        totals.waiting = 0

    def configure(self, limits: Limits) -> None:
        """Apply new limits; requests that wait already stay."""
        self.max_wait_s, self.enabled = limits.max_wait_ms / 1000, limits.enabled
        self._queue.configure(limits.max_depth)

    def __len__(self) -> int:
        return len(self._queue) + len(self._interrupted)

    def ahead_of(self, level: Priority, kind: Hashable) -> NoRoute | None:
        """Return why the requests wait that a new request of this kind must not overtake; None if
        there are none."""
        if kind is None or not len(self._queue):
            return None
        first = next(self._queue.upcoming(lambda each: each == kind), None)
        if first is None or PRIORITIES.index(first.level) > PRIORITIES.index(level):
            return None
        return first.no_route

    def add(self, request: TrackedRequest, now: float) -> TrackedRequest | None:
        """Add a request. If the queue was full, return the request that is not in the queue: this
        one or a displaced one."""
        queue = self._interrupted if request.failures.interrupted else self._queue
        displaced = queue.push(request, now)
        self._totals.waited += displaced is not request
        self._totals.unplaced += displaced not in (None, request)
        self._totals.waiting = len(self)
        return displaced

    def remove(self, request: TrackedRequest, *, unplaced: bool = False) -> None:
        """Remove a request, if it waits.

        Args:
            unplaced: no worker was found.
        """
        if request.request is None:
            return
        if self._interrupted.remove(request) or self._queue.remove(request):
            self._totals.unplaced += unplaced
            self._totals.waiting = len(self)

    def retry(self, place_again: Callable[[TrackedRequest], None]) -> None:
        """Try to place the requests in order; of those with the same kind and priority, until one
        finds no worker."""
        unplaced: set[Hashable] = set()
        for request in [*self._interrupted, *self._queue]:
            alike = request.waiting_kind, request.level
            if request.waiting_kind is None or alike not in unplaced:
                place_again(request)
                if request.state == "queued":
                    unplaced.add(alike)


class RetrySchedule:
    """
    Args:
        rng: returns a random number from 0 to 1, so that requests that failed together are not
            retried together.
    """

    def __init__(self, settings: RetrySettings, rng: Callable[[], float]) -> None:
        self._settings = settings
        self._rng = rng

    def delay_s(self, failures: int) -> float | None:
        """Return the delay after this many failed attempts, at least 1; None if there is no further
        attempt."""
        settings = self._settings
        if not settings.enabled or failures >= settings.max_attempts:
            return None
        return self.backoff_s(failures)

    def backoff_s(self, failures: int) -> float:
        """Return the delay after this many failed attempts, regardless of the maximum."""
        settings = self._settings
        delay_ms = float(settings.initial_delay_ms)
        for _ in range(failures - 1):  # a power would overflow long after the limit is reached
            delay_ms = min(settings.max_delay_ms, delay_ms * settings.multiplier)
        jitter = 1 + settings.jitter * (2 * self._rng() - 1)
        return min(delay_ms, settings.max_delay_ms) * jitter / 1000
