"""What workers do over a time: the difference of what they say at its ends, and means of what they
say between. Plain values: no clock, no I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from shared.ids import BootId, WorkerId
from shared.messages.rollout import Speed
from shared.messages.worker_report import WorkerReport

LEAST_TOKENS_PER_S = 1.0
"""With less before there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Of one boot of a worker, since its start. Failed are also those that ended because of what
    they ask: a smaller context makes more of them, and mistakes of clients are spread evenly."""

    completed: int = 0
    failed: int = 0
    refused: int = 0
    engine_restarts: int = 0

    @classmethod
    def of(cls, report: WorkerReport) -> "RequestCounts":
        levels = report.queue.levels.values()
        return cls(
            completed=report.completed_requests,
            failed=report.failed_requests + report.rejected_requests,
            refused=sum(level.rejected + level.dropped for level in levels)
            + report.memory.refusals,
            engine_restarts=sum(engine.restarts for engine in report.engines),
        )

    def since(self, before: "RequestCounts") -> "RequestCounts":
        return RequestCounts(
            self.completed - before.completed,
            self.failed - before.failed,
            self.refused - before.refused,
            self.engine_restarts - before.engine_restarts,
        )


@dataclass(frozen=True, slots=True)
class Mean:
    """Of so many values.

    Attributes:
        error: its standard error.
    """

    value: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Collection[float]) -> "Mean":
        count = len(values)
        if not count:
            return cls(0.0, 0.0, 0)
        mean = sum(values) / count
        if count == 1:
            return cls(mean, 0.0, 1)
        variance = sum((value - mean) ** 2 for value in values) / (count - 1)
        return cls(mean, sqrt(variance / count), count)


@dataclass(slots=True)
class _Seen:
    """
    Attributes:
        busy: at each moment with requests their level (`Speed`), and the tokens per second.
    """

    boot_id: BootId
    first: RequestCounts
    last: RequestCounts
    busy: list[tuple[int, float]] = field(default_factory=list)
    batch_changes: float = 0.0
    soft_memory: bool = False
    breaker_open_s: float = 0.0
    failover_ms: float = 0.0
    at: float = 0.0


class WorkerMetrics:
    """From `began_at` on.

    Attributes:
        rebooted: workers that ended meanwhile.
    """

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.rebooted: set[WorkerId] = set()
        self._seen: dict[WorkerId, _Seen] = {}

    def add(
        self,
        reports: Iterable[WorkerReport],
        now: float,
        *,
        open_breakers: Collection[WorkerId] = (),
        failovers_ms: Mapping[WorkerId, float] | None = None,
    ) -> None:
        """What all workers say now.

        Args:
            failovers_ms: the slowest of each worker since the last call.
        """
        for report in reports:
            counts = RequestCounts.of(report)
            seen = self._seen.get(report.id)
            if seen is None:
                seen = self._seen[report.id] = _Seen(report.boot_id, counts, counts, at=now)
            elif seen.boot_id != report.boot_id:
                self.rebooted.add(report.id)
                seen.boot_id, seen.first = report.boot_id, RequestCounts()
            seen.last = counts
            if report.active_requests:
                seen.busy.append((report.active_requests.bit_length(), report.tokens_per_s))
            lately = [
                change
                for engine in report.engines
                for batch in engine.batches
                for change in batch.changes
                if now - change.ago_s >= self.began_at
            ]
            seen.batch_changes = max(seen.batch_changes, len(lately))
            seen.soft_memory = report.memory.pressure != "none"
            if report.id in open_breakers:
                seen.breaker_open_s += now - seen.at
            seen.failover_ms = max(seen.failover_ms, (failovers_ms or {}).get(report.id, 0.0))
            seen.at = now

    def counts(self, workers: Collection[WorkerId] | None = None) -> RequestCounts:
        """What ended there since the beginning, together; of all workers by default."""
        each = [seen.last.since(seen.first) for seen in self._of(workers)]
        return RequestCounts(
            sum(one.completed for one in each),
            sum(one.failed for one in each),
            sum(one.refused for one in each),
            sum(one.engine_restarts for one in each),
        )

    def speeds(self) -> dict[WorkerId, list[Speed]]:
        """Of each worker while it was busy."""
        found: dict[WorkerId, list[Speed]] = {}
        for worker, seen in self._seen.items():
            levels = sorted({level for level, _ in seen.busy})
            means = {
                level: Mean.of([speed for at, speed in seen.busy if at == level]).value
                for level in levels
            }
            found[worker] = [Speed(level=level, tokens_per_s=means[level]) for level in levels]
        return found

    def speed_share(
        self, before: Mapping[WorkerId, Sequence[Speed]], workers: Collection[WorkerId]
    ) -> Mean:
        """How fast workers were while they were busy, as a share of what they were before with as
        many requests: moment by moment, where that is known."""
        shares: list[float] = []
        for worker in workers:
            known = {one.level: one.tokens_per_s for one in before.get(worker, ())}
            busy = self._seen[worker].busy if worker in self._seen else []
            shares += [
                speed / known[level]
                for level, speed in busy
                if known.get(level, 0.0) >= LEAST_TOKENS_PER_S
            ]
        return Mean.of(shares)

    def batch_changes_per_min(self, workers: Collection[WorkerId], now: float) -> float:
        """Of that one that changes most."""
        minutes = max(now - self.began_at, 1.0) / 60
        most = max((seen.batch_changes for seen in self._of(workers)), default=0.0)
        return most / max(minutes, 1.0)

    def breaker_open_s(self, workers: Collection[WorkerId]) -> float:
        return max((seen.breaker_open_s for seen in self._of(workers)), default=0.0)

    def failover_ms(self, workers: Collection[WorkerId]) -> float:
        return max((seen.failover_ms for seen in self._of(workers)), default=0.0)

    def soft_memory(self, workers: Collection[WorkerId]) -> list[WorkerId]:
        """Those above their soft limit now."""
        return [
            worker for worker in workers if worker in self._seen and self._seen[worker].soft_memory
        ]

    def _of(self, workers: Collection[WorkerId] | None) -> list[_Seen]:
        if workers is None:
            return list(self._seen.values())
        return [seen for worker, seen in self._seen.items() if worker in workers]


def error_share(counts: RequestCounts) -> float:
    """Of all that came, what failed or was refused."""
    ended = counts.completed + counts.failed + counts.refused
    return (counts.failed + counts.refused) / ended if ended else 0.0
