"""When something is due, for many keys. Plain data; seconds of any monotonic clock.

Only the earliest time that a key was given counts. Who is due looks at what is really to be done,
and says when to come again: that is cheaper than to move a time at each event.
"""

import heapq
import itertools
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """One deadline a key: a heap, in which what was replaced or dropped stays until its time."""

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()

    def set(self, key: K, at: float) -> None:
        """Due then, unless it is earlier."""
        if at < self._at.get(key, math.inf):
            self._at[key] = at
            heapq.heappush(self._heap, (at, next(self._numbers), key))

    def drop(self, key: K) -> None:
        self._at.pop(key, None)

    @property
    def next_at(self) -> float:
        """The earliest one; never where there is none."""
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop_due(self, now: float) -> list[K]:
        """Those that are due, the earliest first; they have no deadline any more."""
        due: list[K] = []
        while self.next_at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            due.append(key)
        return due
