"""The bounded queue of a worker: three priorities, first in first out within each.

A plain data structure: decisions only, no clock, no I/O.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from shared.messages.request import PRIORITIES, Priority


class Queued(Protocol):
    @property
    def level(self) -> Priority: ...


Q = TypeVar("Q", bound=Queued)


class RequestQueue(Generic[Q]):
    """Requests that wait for a batch slot."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._levels: dict[Priority, deque[Q]] = {level: deque() for level in PRIORITIES}

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels.values())

    def __iter__(self) -> Iterator[Q]:
        """From the next to the last."""
        for level in PRIORITIES:
            yield from self._levels[level]

    @property
    def full(self) -> bool:
        return len(self) >= self.max_depth

    def push(self, request: Q) -> bool:
        """Put a request behind its equals; False, and nothing done, when the queue is full."""
        if self.full:
            return False
        self._levels[request.level].append(request)
        return True

    def pop(self, admissible: Callable[[Q], bool]) -> Q | None:
        """Take the first request that `admissible` lets through; None when there is none."""
        for level in self._levels.values():
            for request in level:
                if admissible(request):
                    level.remove(request)
                    return request
        return None

    def remove(self, request: Q) -> bool:
        """Take out one request; False when it is not there."""
        try:
            self._levels[request.level].remove(request)
        except ValueError:
            return False
        return True
