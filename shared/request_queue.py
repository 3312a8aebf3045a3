"""A bounded priority queue, for workers and controllers. Within a priority clients take turns, and
the requests of a client are first in first out.

Turns are start times of start-time fair queueing (Goyal et al., 1996) in which each request costs
one: a request starts one after the one before of its client, and never before the last request that
left the queue. So a client that comes is served next, however many requests of others wait.

A request that has waited long is promoted to the next level, so that none starves. A request that
shares a prefix with running requests may overtake others of its client, and those in the same turn,
but each only a few times. A plain data structure: no clock, no I/O.

Requests of one client and kind share a lane in their level. Each kind is checked for admission
once, however many of its requests wait: the cost of `pop` depends on the number of lanes, not on
the depth.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from shared.ids import ClientName
from shared.messages.base import PRIORITIES, Priority

_LOOKAHEAD = 8
_MAX_OVERTAKEN = 4
"""The next request is one of the first 8 of a level, unless it would overtake one of them that was
overtaken 4 times."""

_RESERVED_SHARE = 20
"""One slot in 20 is reserved for priorities above medium, one more for those above low, and one for
clients that have fewer than that many requests: a queue full of the lower ones, or of one client's,
must not shut out the others."""
_MAX_ABSENT = 1000
"""So many clients that have nothing in the queue are remembered at most."""


def reserve_of(max_depth: int) -> int:
    """Return how many slots of a queue no client takes that has as many requests there."""
    return max_depth // _RESERVED_SHARE


def reserved_for_others(max_depth: int, held: int) -> int:
    """Return how many slots of a queue a client that has `held` requests there leaves free."""
    reserve = reserve_of(max_depth)
    return reserve if held >= reserve else 0


class QueueableRequest(Protocol):
    @property
    def level(self) -> Priority: ...

    @property
    def client(self) -> ClientName: ...


Q = TypeVar("Q", bound=QueueableRequest)
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Entry(Generic[Q, K]):
    """A queued request.

    Attributes:
        level: the current one, after promotions.
        turn: of its client, in that level.
        order: counts up, in the order in which requests entered their current level.
        since: when it entered that level.
        overtaken: how many later requests of its level went first.
    """

    request: Q
    kind: K
    level: int
    turn: int
    order: int
    since: float
    overtaken: int = 0


_Lane = dict[int, _Entry[Q, K]]
"""Entries of one level, client and kind by their `order`, which is also the order of insertion and
that of their turns."""
_in_turn = attrgetter("turn", "order")


class _Level(Generic[Q, K]):
    """The entries of one level.

    Attributes:
        lanes: none is empty.
    """

    def __init__(self) -> None:
        self.lanes: dict[tuple[ClientName, K], _Lane[Q, K]] = {}
        self._now = 0  # the turn of the last request that left
        self._turns: dict[ClientName, int] = {}  # the last turn of each client
        self._counts = Counter[ClientName]()

    def insert(self, entry: _Entry[Q, K]) -> None:
        """Add an entry behind those of its client."""
        client = entry.request.client
        entry.turn = max(self._now, self._turns.get(client, -1) + 1)
        self._turns[client] = entry.turn
        self._counts[client] += 1
        self.lanes.setdefault((client, entry.kind), {})[entry.order] = entry

    def remove(self, entry: _Entry[Q, K], *, served: bool = False) -> None:
        client = entry.request.client
        lane = self.lanes[client, entry.kind]
        del lane[entry.order]
        if not lane:
            del self.lanes[client, entry.kind]
        if served:
            self._now = max(self._now, entry.turn)
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]
            self._turns[client] = min(self._turns[client], self._now)  # nothing is owed for others
        if len(self._turns) > len(self._counts) + _MAX_ABSENT:
            self._turns = {name: self._turns[name] for name in self._counts}


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
        self._levels: list[_Level[Q, K]] = [_Level() for _ in range(levels)]
        self._held = Counter[ClientName]()
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

    def capacity(self, level: Priority, client: ClientName | None = None) -> int:
        """Return how many more requests of a priority fit in: of that client, or of one that has
        none in the queue."""
        held = self._held[client] if client is not None else 0
        free = self.max_depth - len(self) - reserved_for_others(self.max_depth, held)
        if self._reject_when_full:
            return max(0, free - self._level_of(level) * (self.max_depth // _RESERVED_SHARE))
        lower = PRIORITIES[PRIORITIES.index(level) + 1 :]
        return free + sum(len(self._arrived[each]) for each in lower)

    def ahead_of(self, level: Priority) -> Iterator[Q]:
        """Return the requests that go before a new one of a priority."""
        upto = self._level_of(level)
        levels = (self._candidates(each) for each in range(upto + 1))
        return (entry.request for entries in levels for entry in entries)

    def push(self, request: Q, now: float) -> Q | None:
        """Queue a request behind the others of its priority and client.

        Returns:
            The request that the full queue drops: this one, or a queued one. None if the queue
            had capacity.
        """
        if self.capacity(request.level, request.client) <= 0:
            return request
        dropped = self._lowest() if len(self) >= self.max_depth else None
        if dropped is not None:
            self.remove(dropped)
        level = self._level_of(request.level)
        entry = _Entry(request, self._kind(request), level, 0, next(self._orders), now)
        self._arrived[request.level][request] = entry
        self._held[request.client] += 1
        self._levels[level].insert(entry)
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
        for level in range(len(self._levels)):
            candidates = self._candidates(level, admissible, ready)
            entries = list(itertools.islice(candidates, _LOOKAHEAD))
            if entries:
                chosen = _preferred(entries, affinity)
                for entry in entries[: entries.index(chosen)]:
                    entry.overtaken += 1
                self._remove(chosen, served=True)
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
        for level in range(len(self._levels)):
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
        for number, level in enumerate(self._levels[1:], start=1):
            while level.lanes:
                first = min(
                    (next(iter(lane.values())) for lane in level.lanes.values()),
                    key=attrgetter("order"),
                )
                if now - first.since < self._promote_after_s:
                    break
                level.remove(first)
                first.level, first.order = number - 1, next(self._orders)
                first.since, first.overtaken = now, 0
                self._levels[first.level].insert(first)
                promoted.append(first.request)
        return promoted

    def remove(self, request: Q) -> bool:
        """Remove a request; return False if it is not queued."""
        entry = self._arrived[request.level].get(request)
        if entry is None:
            return False
        self._remove(entry)
        return True

    def _remove(self, entry: _Entry[Q, K], *, served: bool = False) -> None:
        del self._arrived[entry.request.level][entry.request]
        self._levels[entry.level].remove(entry, served=served)
        client = entry.request.client
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]

    def _candidates(
        self,
        level: int,
        admissible: Callable[[K], bool] = lambda _: True,
        ready: Callable[[Q], bool] = lambda _: True,
    ) -> Iterator[_Entry[Q, K]]:
        """Return the entries of one level, in order."""
        by_client = self._levels[level].lanes.items()
        admitted = {
            kind: admissible(kind) for kind in dict.fromkeys(kind for (_, kind), _ in by_client)
        }
        lanes = [lane.values() for (_, kind), lane in by_client if admitted[kind]]
        return (entry for entry in merge(*lanes, key=_in_turn) if ready(entry.request))

    def _level_of(self, level: Priority) -> int:
        return min(PRIORITIES.index(level), len(self._levels) - 1)

    def _lowest(self) -> Q:
        """Return the newest request of the lowest priority."""
        return next(next(reversed(each)) for each in reversed(self._arrived.values()) if each)


def _preferred(entries: list[_Entry[Q, K]], affinity: Callable[[Q], int]) -> _Entry[Q, K]:
    """Return the entry of highest affinity that overtakes none that was overtaken too often, and
    none of another client that is in an earlier turn."""
    turn, clients, allowed = entries[0].turn, {entries[0].request.client}, 1
    for before, entry in itertools.pairwise(entries):
        if before.overtaken >= _MAX_OVERTAKEN:
            break
        clients.add(entry.request.client)
        if entry.turn != turn and len(clients) > 1:
            break
        allowed += 1
    return max(entries[:allowed], key=lambda entry: affinity(entry.request))
