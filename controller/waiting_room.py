"""Where requests wait for which no worker has room now: bounded in number and in time."""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from controller.routing import NoRoute
from shared.messages.request import PRIORITIES, Priority
from shared.request_queue import RequestQueue
from shared.settings.tree import WaitingRoom as Limits

_LOOK_S = 0.02
"""Changes are looked at together that come within so short a time."""

P = TypeVar("P")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[P]):
    """
    Attributes:
        who: waits.
        kind: who is alike here finds a place where this one does; None where that cannot be said.
        place: tries to find one.
        until: it waits no longer.
        error: why there was none when it was last tried.
    """

    who: Hashable
    level: Priority
    kind: Hashable
    place: Callable[[], P]
    until: float
    error: NoRoute
    found: "asyncio.Future[P | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class WaitingRoom(Generic[P]):
    """By priority, then in the order in which they came.

    Args:
        clock: seconds, monotonic.

    Attributes:
        max_wait_s: how long anybody should wait.
        came, left: how many waited, and how many of them found no place in time.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.max_wait_s = limits.max_wait_ms / 1000
        self._clock = clock
        self._queue: RequestQueue[_Waiting[P], Hashable] = RequestQueue(
            _depth(limits), kind=lambda waiting: waiting.kind, reject_when_full=False
        )
        self._by_who: dict[Hashable, _Waiting[P]] = {}
        self._look: asyncio.TimerHandle | None = None
        self.came = self.left = 0

    def configure(self, limits: Limits) -> None:
        """Hold other limits; who waits already stays."""
        self.max_wait_s = limits.max_wait_ms / 1000
        self._queue.configure(_depth(limits))

    def __len__(self) -> int:
        return len(self._queue)

    def ahead_of(self, level: Priority, kind: Hashable) -> NoRoute | None:
        """Why those wait whom a new request of this kind must not overtake; None where nobody
        does."""
        if kind is None:
            return None
        first = next(self._queue.upcoming(lambda each: each == kind), None)
        if first is None or PRIORITIES.index(first.level) > PRIORITIES.index(level):
            return None
        return first.error

    async def wait(
        self,
        who: Hashable,
        place: Callable[[], P],
        error: NoRoute,
        *,
        level: Priority,
        kind: Hashable,
        until: float,
    ) -> P | None:
        """What `place` returns once it raises no `NoRoute`; None after `dismiss`.

        Args:
            who: waits once at a time.
            error: why there is no place now.
            until: how long.

        Raises:
            NoRoute: there is no room to wait, or no place came in time; what else `place` raises.
        """
        waiting = _Waiting(who, level, kind, place, until, error)
        loser = self._queue.push(waiting, self._clock())
        if loser is waiting:
            raise error
        self.came += 1
        self._by_who[who] = waiting
        if loser is not None:
            self._leave(loser)
        try:
            return await waiting.found
        finally:
            self._queue.remove(waiting)
            self._by_who.pop(who, None)

    def dismiss(self, who: Hashable) -> None:
        """Somebody need not wait any more; called for each request that ends."""
        if (waiting := self._by_who.get(who)) is not None:
            self._settle(waiting, None)

    def nudge(self) -> None:
        """Something changed: look soon whether there are places now."""
        if self._look is None and len(self._queue):
            self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_now)

    def tick(self) -> None:
        """Have those leave whose time is over; call it a few times a second."""
        now = self._clock()
        for waiting in list(self._queue):
            if now >= waiting.until:
                self._leave(waiting)
        self.nudge()

    def _look_now(self) -> None:
        self._look = None
        hopeless: set[Hashable] = set()
        for waiting in list(self._queue):
            if waiting.found.done():
                continue
            if waiting.kind is not None and (waiting.kind, waiting.level) in hopeless:
                continue
            try:
                found = waiting.place()
            except NoRoute as error:
                waiting.error = error
                if waiting.kind is not None and not error.passes:
                    self._leave(waiting)
                    continue
                hopeless.add((waiting.kind, waiting.level))
            except Exception as error:  # one fails, not those behind it
                self._settle(waiting, error)
            else:
                self._settle(waiting, found)

    def _leave(self, waiting: _Waiting[P]) -> None:
        self.left += 1
        self._settle(waiting, waiting.error)

    def _settle(self, waiting: _Waiting[P], end: P | Exception | None) -> None:
        """It waits no longer, unless it stopped by itself, cancelled."""
        self._queue.remove(waiting)
        if waiting.found.done():
            return
        if isinstance(end, Exception):
            waiting.found.set_exception(end)
        else:
            waiting.found.set_result(end)


def _depth(limits: Limits) -> int:
    return limits.max_depth if limits.enabled else 0
