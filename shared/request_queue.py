"""A bounded queue with priorities, first in first out within each: of workers and controllers.

Who waits long rises a level, so that nobody starves; a request that shares a prompt's beginning
with what runs may go before its equals, but not often past the same one. A plain data structure:
decisions only, no clock, no I/O.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from shared.messages.request import PRIORITIES, Priority

_LOOKAHEAD = 8
_MAX_OVERTAKEN = 4
"""Of the first so many of a level any may be next, past others that were passed less often."""

_RESERVED_SHARE = 20
"""Of the whole depth one place in so many is for higher priorities than medium, and as many again
for higher ones than low: a queue full of them must not shut out what matters most."""


class Queued(Protocol):
    @property
    def level(self) -> Priority: ...


Q = TypeVar("Q", bound=Queued)


@dataclass(slots=True, eq=False)
class _Place(Generic[Q]):
    """Where a request stands.

    Attributes:
        number: counts up, in order of arrival.
        since: when it came to its present level.
        overtaken: by how many equals.
    """

    request: Q
    number: int
    since: float
    overtaken: int = 0


class RequestQueue(Generic[Q]):
    """Requests that wait for a batch slot.

    Args:
        levels: how many priorities differ; the lower ones share the last level.
        promote_after_s: who has waited so long in a level rises to the next.
        reject_when_full: whether a full queue refuses the new request; else the newest of the
            lowest priority goes.
    """

    def __init__(
        self,
        max_depth: int,
        *,
        levels: int = len(PRIORITIES),
        promote_after_s: float = 10.0,
        reject_when_full: bool = True,
    ) -> None:
        self.max_depth = max_depth
        self._promote_after_s = promote_after_s
        self._reject_when_full = reject_when_full
        self._levels: list[deque[_Place[Q]]] = [deque() for _ in range(levels)]
        self._numbers = itertools.count()

    def configure(
        self,
        max_depth: int,
        *,
        promote_after_s: float | None = None,
        reject_when_full: bool | None = None,
    ) -> None:
        """Hold other limits from now on, or the same where none is given; who waits stays."""
        self.max_depth = max_depth
        if promote_after_s is not None:
            self._promote_after_s = promote_after_s
        if reject_when_full is not None:
            self._reject_when_full = reject_when_full

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels)

    def __iter__(self) -> Iterator[Q]:
        """From the next to the last."""
        return self.ahead_of(PRIORITIES[-1])

    def room(self, level: Priority) -> int:
        """How many more requests of a priority find a place."""
        if self._reject_when_full:
            reserved = self._level_of(level) * (self.max_depth // _RESERVED_SHARE)
            return max(0, self.max_depth - reserved - len(self))
        lower = sum(PRIORITIES.index(r.level) > PRIORITIES.index(level) for r in self)
        return self.max_depth - len(self) + lower

    def ahead_of(self, level: Priority) -> Iterator[Q]:
        """Those who have their turn before a new request of a priority."""
        upto = self._level_of(level)
        return (place.request for places in self._levels[: upto + 1] for place in places)

    def push(self, request: Q, now: float) -> Q | None:
        """Put a request behind its equals.

        Returns:
            The one for whom there is no place then: this one, or one that was queued; None
            where there is room for all.
        """
        place = _Place(request, next(self._numbers), now)
        if self.room(request.level) == 0:
            return request
        loser = self._least() if len(self) >= self.max_depth else None
        if loser is not None:
            self.remove(loser)
        self._levels[self._level_of(request.level)].append(place)
        return loser

    def pop(
        self, admissible: Callable[[Q], bool], kinship: Callable[[Q], int] = lambda _: 0
    ) -> Q | None:
        """Take the next request that `admissible` lets through; None when there is none.

        Args:
            kinship: how much a request shares with what runs; the more, the better.
        """
        for level in self._levels:
            places = list(itertools.islice(
                (place for place in level if admissible(place.request)), _LOOKAHEAD
            ))  # fmt: skip
            if places:
                chosen = _preferred(places, kinship)
                for place in places[: places.index(chosen)]:
                    place.overtaken += 1
                level.remove(chosen)
                return chosen.request
        return None

    def upcoming(
        self, admissible: Callable[[Q], bool], kinship: Callable[[Q], int] = lambda _: 0
    ) -> Iterator[Q]:
        """Those whom `admissible` lets through in the order in which `pop` would take them now."""
        for level in self._levels:
            places = [place for place in level if admissible(place.request)]
            while places:
                chosen = _preferred(places[:_LOOKAHEAD], kinship)
                places.remove(chosen)
                yield chosen.request

    def promote(self, now: float) -> list[Q]:
        """Have those rise who have waited long; returns them."""
        risen: list[Q] = []
        for higher, level in itertools.pairwise(self._levels):
            while level and now - level[0].since >= self._promote_after_s:
                place = level.popleft()
                place.since, place.overtaken = now, 0
                higher.append(place)
                risen.append(place.request)
        return risen

    def remove(self, request: Q) -> bool:
        """Take out one request; False when it is not there."""
        for level in self._levels:
            for place in level:
                if place.request is request:
                    level.remove(place)
                    return True
        return False

    def _level_of(self, level: Priority) -> int:
        return min(PRIORITIES.index(level), len(self._levels) - 1)

    def _least(self) -> Q:
        """The newest of the lowest priority."""
        places = [place for level in self._levels for place in level]
        return max(places, key=lambda p: (PRIORITIES.index(p.request.level), p.number)).request


def _preferred(places: list[_Place[Q]], kinship: Callable[[Q], int]) -> _Place[Q]:
    """Of the first ones, the one that shares most, unless it would pass one that was passed
    too often."""
    allowed = 1 + next(
        (at for at, place in enumerate(places) if place.overtaken >= _MAX_OVERTAKEN),
        len(places),
    )
    return max(places[:allowed], key=lambda place: kinship(place.request))
