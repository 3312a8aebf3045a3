"""History of worker reports: token rates of the last minute, and new rejections.

The clock is passed in; no I/O.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from shared.ids import BootId, WorkerId
from shared.messages.worker_report import WorkerReport

MINUTE_S = 60
_SLACK = 1.5
"""A rate is valid for so many intervals; after that the rate is unknown, for example in a pause."""


@dataclass(frozen=True, slots=True)
class OverloadCounts:
    """Counts of workers since their start, with the fields of their queue and memory status."""

    rejected: int = 0
    dropped: int = 0
    promoted: int = 0
    evicted: int = 0
    refused: int = 0

    def __add__(self, other: "OverloadCounts") -> "OverloadCounts":
        return OverloadCounts(
            self.rejected + other.rejected,
            self.dropped + other.dropped,
            self.promoted + other.promoted,
            self.evicted + other.evicted,
            self.refused + other.refused,
        )

    def since(self, before: "OverloadCounts") -> "OverloadCounts":
        """Return the increase since `before`; a counter that went down counts as 0."""
        return OverloadCounts(
            max(0, self.rejected - before.rejected),
            max(0, self.dropped - before.dropped),
            max(0, self.promoted - before.promoted),
            max(0, self.evicted - before.evicted),
            max(0, self.refused - before.refused),
        )


ZERO_COUNTS = OverloadCounts()


def rejection_counts(workers: Iterable[WorkerReport]) -> OverloadCounts:
    """Return the sum over these workers."""
    return sum((_counts_of(worker) for worker in workers), ZERO_COUNTS)


class WorkerHistory:
    """Token rates and counts of each worker.

    Args:
        interval_s: time between two calls of `observe`.
    """

    def __init__(self, interval_s: float) -> None:
        self._valid_s = max(1.0, interval_s * _SLACK)
        self._samples: dict[WorkerId, deque[tuple[float, float]]] = {}
        self._previous: dict[BootId, OverloadCounts] = {}
        self.new_counts = ZERO_COUNTS
        """The increase in the last `observe`, of workers whose boot was observed before."""

    def observe(self, workers: Iterable[WorkerReport], now: float) -> None:
        """Record the reports of workers.

        Args:
            now: seconds, monotonic.
        """
        self.new_counts = ZERO_COUNTS
        for worker in workers:
            counts = _counts_of(worker)
            self.new_counts += counts.since(self._previous.get(worker.boot_id, counts))
            self._previous[worker.boot_id] = counts
            self._samples.setdefault(worker.id, deque()).append((now, worker.tokens_per_s))
        self._forget_old(now)

    def token_rates(self, worker: WorkerId, now: float) -> list[float | None]:
        """Return tokens per second in each of the last 60 seconds, oldest first; None: unknown."""
        values: list[float | None] = [None] * MINUTE_S
        for at, rate in self._samples.get(worker, ()):
            after_s = at - (now - MINUTE_S)
            first = max(0, ceil(after_s) - 1)
            last = max(first, min(MINUTE_S, ceil(after_s + self._valid_s)))
            values[first:last] = [rate] * (last - first)
        return values

    def _forget_old(self, now: float) -> None:
        for worker, samples in list(self._samples.items()):
            while samples and samples[0][0] < now - MINUTE_S - self._valid_s:
                samples.popleft()
            if not samples:
                del self._samples[worker]


def _counts_of(worker: WorkerReport) -> OverloadCounts:
    levels = worker.queue.levels.values()
    return OverloadCounts(
        rejected=sum(level.rejected for level in levels),
        dropped=sum(level.dropped for level in levels),
        promoted=sum(level.promoted for level in levels),
        evicted=worker.memory.evictions,
        refused=worker.memory.refusals,
    )
