"""A bounded queue with priorities, first in first out within each: of workers and controllers.

A request that has waited long is promoted to the next level, so that none starves; a request that
shares a prefix with what runs may overtake its equals, but not the same one often. A plain data
structure: decisions only, no clock, no I/O.

Requests of one kind share a lane in their level. A kind for which there is no slot is asked about
once, however many of its requests wait: the cost of a look depends on the kinds, not on the depth.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from shared.messages.request import PRIORITIES, Priority

_LOOKAHEAD = 8
_MAX_OVERTAKEN = 4
"""The next request is one of the first 8 of a level, unless it would overtake one of them that was
overtaken 4 times."""

_RESERVED_SHARE = 20
"""One slot in 20 is reserved for priorities above medium, and one more for those above low: a queue
full of the lower ones must not shut out the higher."""


class QueueItem(Protocol):
    @property
    def level(self) -> Priority: ...


Q = TypeVar("Q", bound=QueueItem)
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Place(Generic[Q, K]):
    """The position of a request.

    Attributes:
        level: the present one, after promotions.
        order: counts up, in the order in which requests came to their present level.
        since: when it came to that level.
        overtaken: how many equals went first.
    """

    request: Q
    kind: K
    level: int
    order: int
    since: float
    overtaken: int = 0


_Lane = dict[int, _Place[Q, K]]
"""Requests of one level and kind by their `order`, which is the order of insertion, too."""
_in_order = attrgetter("order")


class PriorityQueue(Generic[Q, K]):
    """Requests that wait for a batch slot, each of them queued once.

    Args:
        kind: requests of one kind are admissible together. The kind of a request never changes.
        levels: how many priorities differ; the lower ones share the last level.
        promote_after_s: a request that has waited this long in a level is promoted to the next.
        reject_when_full: whether a full queue refuses the new request; else it drops the newest
            request of the lowest priority.
    """

    def __init__(
        self,
        max_depth: int,
        *,
        kind: Callable[[Q], K],
        levels: int = len(PRIORITIES),
        promote_after_s: float = 10.0,
        reject_when_full: bool = True,
    ) -> None:
        self.max_depth = max_depth
        self._promote_after_s = promote_after_s
        self._reject_when_full = reject_when_full
        self._kind = kind
        self._lanes: list[dict[K, _Lane[Q, K]]] = [{} for _ in range(levels)]
        self._arrived: dict[Priority, dict[Q, _Place[Q, K]]] = {level: {} for level in PRIORITIES}
        self._orders = itertools.count()

    def configure(
        self,
        max_depth: int,
        *,
        promote_after_s: float | None = None,
        reject_when_full: bool | None = None,
    ) -> None:
        """Change the limits that are given; queued requests stay."""
        self.max_depth = max_depth
        if promote_after_s is not None:
            self._promote_after_s = promote_after_s
        if reject_when_full is not None:
            self._reject_when_full = reject_when_full

    def __len__(self) -> int:
        return sum(map(len, self._arrived.values()))

    def __iter__(self) -> Iterator[Q]:
        """In the order of their turns."""
        return self.ahead_of(PRIORITIES[-1])

    def room(self, level: Priority) -> int:
        """How many more requests of a priority fit in."""
        if self._reject_when_full:
            reserved = self._level_of(level) * (self.max_depth // _RESERVED_SHARE)
            return max(0, self.max_depth - reserved - len(self))
        lower = PRIORITIES[PRIORITIES.index(level) + 1 :]
        return self.max_depth - len(self) + sum(len(self._arrived[each]) for each in lower)

    def ahead_of(self, level: Priority) -> Iterator[Q]:
        """The requests that go before a new one of a priority."""
        upto = self._level_of(level)
        levels = (self._candidates(each) for each in range(upto + 1))
        return (place.request for places in levels for place in places)

    def push(self, request: Q, now: float) -> Q | None:
        """Queue a request behind its equals.

        Returns:
            The request that the full queue drops: this one, or one that was queued. None if it
            had room.
        """
        if self.room(request.level) <= 0:
            return request
        loser = self._least() if len(self) >= self.max_depth else None
        if loser is not None:
            self.remove(loser)
        level = self._level_of(request.level)
        place = _Place(request, self._kind(request), level, next(self._orders), now)
        self._arrived[request.level][request] = place
        self._enter(place)
        return loser

    def pop(
        self,
        admissible: Callable[[K], bool] = lambda _: True,
        ready: Callable[[Q], bool] = lambda _: True,
        affinity: Callable[[Q], int] = lambda _: 0,
    ) -> Q | None:
        """Take the next request of an admissible kind that is ready; None when there is none.

        Args:
            admissible: called once for each kind in a level.
            ready: called for one request after another until enough are ready.
            affinity: how much a request shares with what runs; more is better.
        """
        for level in range(len(self._lanes)):
            candidates = self._candidates(level, admissible, ready)
            places = list(itertools.islice(candidates, _LOOKAHEAD))
            if places:
                chosen = _preferred(places, affinity)
                for place in places[: places.index(chosen)]:
                    place.overtaken += 1
                self.remove(chosen.request)
                return chosen.request
        return None

    def upcoming(
        self,
        admissible: Callable[[K], bool] = lambda _: True,
        ready: Callable[[Q], bool] = lambda _: True,
        affinity: Callable[[Q], int] = lambda _: 0,
    ) -> Iterator[Q]:
        """The requests in the order in which `pop` would take them now. Lazy: the queue must not
        change meanwhile."""
        for level in range(len(self._lanes)):
            candidates = self._candidates(level, admissible, ready)
            places = list(itertools.islice(candidates, _LOOKAHEAD))
            while places:
                chosen = _preferred(places, affinity)
                places.remove(chosen)
                places += itertools.islice(candidates, 1)
                yield chosen.request

    def promote(self, now: float) -> list[Q]:
        """Promote the requests that have waited long; returns them."""
        risen: list[Q] = []
        for level, lanes in enumerate(self._lanes[1:], start=1):
            while lanes:
                first = min((next(iter(lane.values())) for lane in lanes.values()), key=_in_order)
                if now - first.since < self._promote_after_s:
                    break
                self._leave(first)
                first.level, first.order = level - 1, next(self._orders)
                first.since, first.overtaken = now, 0
                self._enter(first)
                risen.append(first.request)
        return risen

    def remove(self, request: Q) -> bool:
        """Remove a request; False when it is not queued."""
        place = self._arrived[request.level].pop(request, None)
        if place is None:
            return False
        self._leave(place)
        return True

    def _candidates(
        self,
        level: int,
        admissible: Callable[[K], bool] = lambda _: True,
        ready: Callable[[Q], bool] = lambda _: True,
    ) -> Iterator[_Place[Q, K]]:
        """The places of one level, in order."""
        lanes = [lane.values() for kind, lane in self._lanes[level].items() if admissible(kind)]
        return (place for place in merge(*lanes, key=_in_order) if ready(place.request))

    def _enter(self, place: _Place[Q, K]) -> None:
        self._lanes[place.level].setdefault(place.kind, {})[place.order] = place

    def _leave(self, place: _Place[Q, K]) -> None:
        lanes = self._lanes[place.level]
        del lanes[place.kind][place.order]
        if not lanes[place.kind]:
            del lanes[place.kind]

    def _level_of(self, level: Priority) -> int:
        return min(PRIORITIES.index(level), len(self._lanes) - 1)

    def _least(self) -> Q:
        """The newest of the lowest priority."""
        return next(next(reversed(each)) for each in reversed(self._arrived.values()) if each)


def _preferred(places: list[_Place[Q, K]], affinity: Callable[[Q], int]) -> _Place[Q, K]:
    """The one that shares most, unless it would overtake one that was overtaken too often."""
    allowed = 1 + next(
        (at for at, place in enumerate(places) if place.overtaken >= _MAX_OVERTAKEN),
        len(places),
    )
    return max(places[:allowed], key=lambda place: affinity(place.request))
