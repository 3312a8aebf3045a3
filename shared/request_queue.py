"""A bounded priority queue, first in first out per priority, for workers and controllers.

A request that has waited long is promoted to the next level, so that none starves. A request that
shares a prefix with running requests may overtake others of its level, but each only a few times.
A plain data structure: no clock, no I/O.

Requests of one kind share a lane in their level. Each kind is checked for admission once, however
many of its requests wait: the cost of `pop` depends on the number of kinds, not on the depth.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from shared.messages.base import PRIORITIES, Priority

_LOOKAHEAD = 8
_MAX_OVERTAKEN = 4
"""The next request is one of the first 8 of a level, unless it would overtake one of them that was
overtaken 4 times."""

_RESERVED_SHARE = 20
"""One slot in 20 is reserved for priorities above medium, and one more for those above low: a queue
full of the lower ones must not shut out the higher."""


class QueueableRequest(Protocol):
    @property
    def level(self) -> Priority: ...


Q = TypeVar("Q", bound=QueueableRequest)
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Entry(Generic[Q, K]):
    """A queued request.

    Attributes:
        level: the current one, after promotions.
        order: counts up, in the order in which requests entered their current level.
        since: when it entered that level.
        overtaken: how many later requests of its level went first.
    """

    request: Q
    kind: K
    level: int
    order: int
    since: float
    overtaken: int = 0


_Lane = dict[int, _Entry[Q, K]]
"""Entries of one level and kind by their `order`, which is also the order of insertion."""
_in_order = attrgetter("order")


class PriorityQueue(Generic[Q, K]):
    """Requests that wait for a batch slot, each queued once.

    Args:
        kind: requests of one kind are admissible together. The kind of a request never changes.
        levels: number of priority levels; the lower priorities share the last one.
        promote_after_s: a request that has waited this long in a level is promoted to the next.
        reject_when_full: whether a full queue rejects the new request; otherwise it drops the
            newest request of the lowest priority.
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
        self._arrived: dict[Priority, dict[Q, _Entry[Q, K]]] = {level: {} for level in PRIORITIES}
        self._orders = itertools.count()

    def configure(
        self,
        max_depth: int,
        *,
        promote_after_s: float | None = None,
        reject_when_full: bool | None = None,
    ) -> None:
        """Change the given limits; queued requests stay."""
        self.max_depth = max_depth
        if promote_after_s is not None:
            self._promote_after_s = promote_after_s
        if reject_when_full is not None:
            self._reject_when_full = reject_when_full

    def __len__(self) -> int:
        return sum(map(len, self._arrived.values()))

    def __iter__(self) -> Iterator[Q]:
        """Iterate in queue order."""
        return self.ahead_of(PRIORITIES[-1])

    def capacity(self, level: Priority) -> int:
        """Return how many more requests of a priority fit in."""
        if self._reject_when_full:
            reserved = self._level_of(level) * (self.max_depth // _RESERVED_SHARE)
            return max(0, self.max_depth - reserved - len(self))
        lower = PRIORITIES[PRIORITIES.index(level) + 1 :]
        return self.max_depth - len(self) + sum(len(self._arrived[each]) for each in lower)

    def ahead_of(self, level: Priority) -> Iterator[Q]:
        """Return the requests that go before a new one of a priority."""
        upto = self._level_of(level)
        levels = (self._candidates(each) for each in range(upto + 1))
        return (entry.request for entries in levels for entry in entries)

    def push(self, request: Q, now: float) -> Q | None:
        """Queue a request behind the others of its priority.

        Returns:
            The request that the full queue drops: this one, or a queued one. None if the queue
            had capacity.
        """
        if self.capacity(request.level) <= 0:
            return request
        dropped = self._lowest() if len(self) >= self.max_depth else None
        if dropped is not None:
            self.remove(dropped)
        level = self._level_of(request.level)
        entry = _Entry(request, self._kind(request), level, next(self._orders), now)
        self._arrived[request.level][request] = entry
        self._insert(entry)
        return dropped

    def pop(
        self,
        admissible: Callable[[K], bool] = lambda _: True,
        ready: Callable[[Q], bool] = lambda _: True,
        affinity: Callable[[Q], int] = lambda _: 0,
    ) -> Q | None:
        """Remove and return the next ready request of an admissible kind, or None.

        Args:
            admissible: called once for each kind in a level.
            ready: called for one request after another until enough are ready.
            affinity: how much a request shares with running requests; more is better.
        """
        for level in range(len(self._lanes)):
            candidates = self._candidates(level, admissible, ready)
            entries = list(itertools.islice(candidates, _LOOKAHEAD))
            if entries:
                chosen = _preferred(entries, affinity)
                for entry in entries[: entries.index(chosen)]:
                    entry.overtaken += 1
                self.remove(chosen.request)
                return chosen.request
        return None

    def upcoming(
        self,
        admissible: Callable[[K], bool] = lambda _: True,
        ready: Callable[[Q], bool] = lambda _: True,
        affinity: Callable[[Q], int] = lambda _: 0,
    ) -> Iterator[Q]:
        """Yield the requests in the order in which `pop` would return them now. Lazy: the queue
        must not change meanwhile."""
        for level in range(len(self._lanes)):
            candidates = self._candidates(level, admissible, ready)
            entries = list(itertools.islice(candidates, _LOOKAHEAD))
            while entries:
                chosen = _preferred(entries, affinity)
                entries.remove(chosen)
                entries += itertools.islice(candidates, 1)
                yield chosen.request

    def promote(self, now: float) -> list[Q]:
        """Promote the requests that have waited long, and return them."""
        promoted: list[Q] = []
        for level, lanes in enumerate(self._lanes[1:], start=1):
            while lanes:
                first = min((next(iter(lane.values())) for lane in lanes.values()), key=_in_order)
                if now - first.since < self._promote_after_s:
                    break
                self._unlink(first)
                first.level, first.order = level - 1, next(self._orders)
                first.since, first.overtaken = now, 0
                self._insert(first)
                promoted.append(first.request)
        return promoted

    def remove(self, request: Q) -> bool:
        """Remove a request; return False if it is not queued."""
        entry = self._arrived[request.level].pop(request, None)
        if entry is None:
            return False
        self._unlink(entry)
        return True

    def _candidates(
        self,
        level: int,
        admissible: Callable[[K], bool] = lambda _: True,
        ready: Callable[[Q], bool] = lambda _: True,
    ) -> Iterator[_Entry[Q, K]]:
        """Return the entries of one level, in order."""
        lanes = [lane.values() for kind, lane in self._lanes[level].items() if admissible(kind)]
        return (entry for entry in merge(*lanes, key=_in_order) if ready(entry.request))

    def _insert(self, entry: _Entry[Q, K]) -> None:
        self._lanes[entry.level].setdefault(entry.kind, {})[entry.order] = entry

    def _unlink(self, entry: _Entry[Q, K]) -> None:
        lanes = self._lanes[entry.level]
        del lanes[entry.kind][entry.order]
        if not lanes[entry.kind]:
            del lanes[entry.kind]

    def _level_of(self, level: Priority) -> int:
        return min(PRIORITIES.index(level), len(self._lanes) - 1)

    def _lowest(self) -> Q:
        """Return the newest request of the lowest priority."""
        return next(next(reversed(each)) for each in reversed(self._arrived.values()) if each)


def _preferred(entries: list[_Entry[Q, K]], affinity: Callable[[Q], int]) -> _Entry[Q, K]:
    """Return the entry of highest affinity that overtakes none that was overtaken too often."""
    allowed = 1 + next(
        (at for at, entry in enumerate(entries) if entry.overtaken >= _MAX_OVERTAKEN),
        len(entries),
    )
    return max(entries[:allowed], key=lambda entry: affinity(entry.request))
