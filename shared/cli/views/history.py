"""What changed since the last look: token rates of the last minute, counts of refusals.

Plain data and a clock passed in: no I/O.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from shared.ids import BootId, WorkerId
from shared.messages.worker_report import WorkerReport

MINUTE_S = 60
_SLACK = 1.5
"""A rate counts for so many intervals: then nobody knows, for example after a pause."""


@dataclass(frozen=True, slots=True)
class RejectionCounts:
    """What workers did not take, took back or moved since they started."""

    rejected: int = 0
    dropped: int = 0
    promoted: int = 0
    evicted: int = 0
    refused: int = 0

    def __add__(self, other: "RejectionCounts") -> "RejectionCounts":
        return RejectionCounts(
            self.rejected + other.rejected,
            self.dropped + other.dropped,
            self.promoted + other.promoted,
            self.evicted + other.evicted,
            self.refused + other.refused,
        )

    def since(self, before: "RejectionCounts") -> "RejectionCounts":
        """What came on top of `before`."""
        return RejectionCounts(
            max(0, self.rejected - before.rejected),
            max(0, self.dropped - before.dropped),
            max(0, self.promoted - before.promoted),
            max(0, self.evicted - before.evicted),
            max(0, self.refused - before.refused),
        )


NO_REFUSALS = RejectionCounts()


def rejection_counts(workers: Iterable[WorkerReport]) -> RejectionCounts:
    """Of all of them together."""
    return sum((_refusals(worker) for worker in workers), NO_REFUSALS)


class History:
    """What was seen of each worker.

    Args:
        interval_s: how often `observe` is called.
    """

    def __init__(self, interval_s: float) -> None:
        self._valid_s = max(1.0, interval_s * _SLACK)
        self._speeds: dict[WorkerId, deque[tuple[float, float]]] = {}
        self._before: dict[BootId, RejectionCounts] = {}
        self.news = NO_REFUSALS
        """What came between the last two looks at the workers that were there at both."""

    def observe(self, workers: Iterable[WorkerReport], now: float) -> None:
        """Take in what workers say.

        Args:
            now: seconds, monotonic.
        """
        self.news = NO_REFUSALS
        for worker in workers:
            counts = _refusals(worker)
            self.news += counts.since(self._before.get(worker.boot_id, counts))
            self._before[worker.boot_id] = counts
            self._speeds.setdefault(worker.id, deque()).append((now, worker.tokens_per_s))
        self._forget_old(now)

    def speeds(self, worker: WorkerId, now: float) -> list[float | None]:
        """Tokens in a second in each of the last sixty seconds, oldest first; None: not known."""
        values: list[float | None] = [None] * MINUTE_S
        for at, speed in self._speeds.get(worker, ()):
            after_s = at - (now - MINUTE_S)
            first = max(0, ceil(after_s) - 1)
            last = max(first, min(MINUTE_S, ceil(after_s + self._valid_s)))
            values[first:last] = [speed] * (last - first)
        return values

    def _forget_old(self, now: float) -> None:
        for worker, samples in list(self._speeds.items()):
            while samples and samples[0][0] < now - MINUTE_S - self._valid_s:
                samples.popleft()
            if not samples:
                del self._speeds[worker]


def _refusals(worker: WorkerReport) -> RejectionCounts:
    levels = worker.queue.levels.values()
    return RejectionCounts(
        rejected=sum(level.rejected for level in levels),
        dropped=sum(level.dropped for level in levels),
        promoted=sum(level.promoted for level in levels),
        evicted=worker.memory.evictions,
        refused=worker.memory.refusals,
    )
