"""One deadline per key, for many keys. Plain data; seconds of any monotonic clock.

Only the earliest time set for a key counts. When a key is due, its owner checks what there is to do
and sets the next deadline: that is cheaper than to move the deadline at each event.
"""

import heapq
import itertools
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class DeadlineHeap(Generic[K]):
    """A heap of deadlines; entries that were replaced or dropped stay in it until their time."""

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()

    def set(self, key: K, at: float) -> None:
        """Set the deadline of a key, unless it has an earlier one."""
        if at < self._at.get(key, math.inf):
            self._at[key] = at
            heapq.heappush(self._heap, (at, next(self._numbers), key))

    def drop(self, key: K) -> None:
        self._at.pop(key, None)

    @property
    def next_at(self) -> float:
        """The earliest deadline; infinity without any."""
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop_due(self, now: float) -> list[K]:
        """Remove the deadlines that have passed and return their keys, the earliest first."""
        due: list[K] = []
        while self.next_at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            due.append(key)
        return due
