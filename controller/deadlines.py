"""When something is due, for many keys: a heap in which what was put off or dropped stays a while.

Plain data; seconds of any monotonic clock.
"""

import heapq
import itertools
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK = 64


class Deadlines(Generic[K]):
    """One deadline a key."""

    def __init__(self) -> None:
        self._at: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()

    def set(self, key: K, at: float) -> None:
        """Replaces the one before."""
        known = self._at.get(key)
        if known is not None and known[0] == at:
            return
        number = next(self._numbers)
        self._at[key] = at, number
        heapq.heappush(self._heap, (at, number, key))
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [(at, number, key) for key, (at, number) in self._at.items()]
            heapq.heapify(self._heap)

    def drop(self, key: K) -> None:
        self._at.pop(key, None)

    @property
    def next_at(self) -> float:
        """The earliest one; never where there is none."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else math.inf

    def pop_due(self, now: float) -> list[K]:
        """Those that are due, the earliest first; they have no deadline any more."""
        due: list[K] = []
        while self.next_at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            due.append(key)
        return due

    def _drop_stale(self) -> None:
        while self._heap and self._at.get(self._heap[0][2], (0, -1))[1] != self._heap[0][1]:
            heapq.heappop(self._heap)
