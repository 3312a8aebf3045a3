"""Metrics of workers over a period: differences of the counters at its ends, and means of the
reports between. Plain values: no clock, no I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from shared.ids import BootId, WorkerId
from shared.messages.rollout import SpeedAtLoad
from shared.messages.worker_report import WorkerReport

MIN_TOKENS_PER_S = 1.0
"""A lower speed in the baseline is not compared."""


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """Requests of one boot of a worker, since its start. `failed` includes invalid requests: a
    smaller context makes more of them, and mistakes of clients are spread evenly over workers."""

    completed: int = 0
    failed: int = 0
    refused: int = 0
    engine_restarts: int = 0

    @classmethod
    def of(cls, report: WorkerReport) -> "WorkerCounters":
        levels = report.queue.levels.values()
        return cls(
            completed=report.completed_requests,
            failed=report.failed_requests + report.rejected_requests,
            refused=sum(level.rejected + level.dropped for level in levels)
            + report.memory.refusals,
            engine_restarts=sum(engine.restarts for engine in report.engines),
        )

    def since(self, before: "WorkerCounters") -> "WorkerCounters":
        return WorkerCounters(
            self.completed - before.completed,
            self.failed - before.failed,
            self.refused - before.refused,
            self.engine_restarts - before.engine_restarts,
        )


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """
    Attributes:
        error: standard error of the mean.
        count: number of values.
    """

    value: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Collection[float]) -> "MeanEstimate":
        count = len(values)
        if not count:
            return cls(0.0, 0.0, 0)
        mean = sum(values) / count
        if count == 1:
            return cls(mean, 0.0, 1)
        variance = sum((value - mean) ** 2 for value in values) / (count - 1)
        return cls(mean, sqrt(variance / count), count)


@dataclass(slots=True)
class _Measured:
    """What was measured of one worker.

    Attributes:
        busy: for each report with active requests, their level (`SpeedAtLoad`) and the tokens per
            second.
    """

    boot_id: BootId
    first: WorkerCounters
    last: WorkerCounters
    busy: list[tuple[int, float]] = field(default_factory=list)
    batch_changes: float = 0.0
    soft_memory: bool = False
    breaker_open_s: float = 0.0
    failover_ms: float = 0.0
    at: float = 0.0


class PeriodMetrics:
    """
    Attributes:
        began_at: start of the period, seconds since 1970.
        rebooted: workers of which a boot ended in the period.
    """

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.rebooted: set[WorkerId] = set()
        self._measured: dict[WorkerId, _Measured] = {}

    def add(
        self,
        reports: Iterable[WorkerReport],
        now: float,
        *,
        open_breakers: Collection[WorkerId] = (),
        failovers_ms: Mapping[WorkerId, float] | None = None,
    ) -> None:
        """Add the current reports of all workers.

        Args:
            failovers_ms: the slowest failover of each worker since the last call.
        """
        for report in reports:
            counts = WorkerCounters.of(report)
            measured = self._measured.get(report.id)
            if measured is None:
                measured = self._measured[report.id] = _Measured(
                    report.boot_id, counts, counts, at=now
                )
            elif measured.boot_id != report.boot_id:
                self.rebooted.add(report.id)
                measured.boot_id, measured.first = report.boot_id, WorkerCounters()
            measured.last = counts
            if report.active_requests:
                measured.busy.append((report.active_requests.bit_length(), report.tokens_per_s))
            recent = [
                change
                for engine in report.engines
                for batch in engine.batches
                for change in batch.changes
                if now - change.ago_s >= self.began_at
            ]
            measured.batch_changes = max(measured.batch_changes, len(recent))
            measured.soft_memory = report.memory.pressure != "none"
            if report.id in open_breakers:
                measured.breaker_open_s += now - measured.at
            measured.failover_ms = max(
                measured.failover_ms, (failovers_ms or {}).get(report.id, 0.0)
            )
            measured.at = now

    def counts(self, workers: Collection[WorkerId] | None = None) -> WorkerCounters:
        """Return the sum over these workers in the period; over all workers by default."""
        each = [measured.last.since(measured.first) for measured in self._of(workers)]
        return WorkerCounters(
            sum(counts.completed for counts in each),
            sum(counts.failed for counts in each),
            sum(counts.refused for counts in each),
            sum(counts.engine_restarts for counts in each),
        )

    def speeds(self) -> dict[WorkerId, list[SpeedAtLoad]]:
        """Return the mean speeds of each worker while it was busy, by level."""
        found: dict[WorkerId, list[SpeedAtLoad]] = {}
        for worker, measured in self._measured.items():
            levels = sorted({level for level, _ in measured.busy})
            means = {
                level: MeanEstimate.of([speed for at, speed in measured.busy if at == level]).value
                for level in levels
            }
            found[worker] = [
                SpeedAtLoad(level=level, tokens_per_s=means[level]) for level in levels
            ]
        return found

    def speed_share(
        self, before: Mapping[WorkerId, Sequence[SpeedAtLoad]], workers: Collection[WorkerId]
    ) -> MeanEstimate:
        """Return the mean speed of busy workers, as a share of their baseline speed at the same
        level. Reports at levels without a baseline are skipped."""
        shares: list[float] = []
        for worker in workers:
            baseline = {speed.level: speed.tokens_per_s for speed in before.get(worker, ())}
            busy = self._measured[worker].busy if worker in self._measured else []
            shares += [
                speed / baseline[level]
                for level, speed in busy
                if baseline.get(level, 0.0) >= MIN_TOKENS_PER_S
            ]
        return MeanEstimate.of(shares)

    def batch_changes_per_min(self, workers: Collection[WorkerId], now: float) -> float:
        """Return the rate of the worker whose batch size changes most often."""
        minutes = max(now - self.began_at, 1.0) / 60
        most = max((measured.batch_changes for measured in self._of(workers)), default=0.0)
        return most / max(minutes, 1.0)

    def breaker_open_s(self, workers: Collection[WorkerId]) -> float:
        return max((measured.breaker_open_s for measured in self._of(workers)), default=0.0)

    def failover_ms(self, workers: Collection[WorkerId]) -> float:
        return max((measured.failover_ms for measured in self._of(workers)), default=0.0)

    def soft_memory(self, workers: Collection[WorkerId]) -> list[WorkerId]:
        """Return the workers that are above their soft memory limit now."""
        return [
            worker
            for worker in workers
            if worker in self._measured and self._measured[worker].soft_memory
        ]

    def _of(self, workers: Collection[WorkerId] | None) -> list[_Measured]:
        if workers is None:
            return list(self._measured.values())
        return [measured for worker, measured in self._measured.items() if worker in workers]


def error_share(counts: WorkerCounters) -> float:
    """Return the share of requests that failed or were refused."""
    ended = counts.completed + counts.failed + counts.refused
    return (counts.failed + counts.refused) / ended if ended else 0.0
