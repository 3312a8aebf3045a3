"""Whether workers with a new version do worse than before. Plain values: no clock, no I/O."""

from collections.abc import Collection

from controller.rollout.worker_metrics import WorkerMetrics, error_share
from shared.ids import WorkerId
from shared.messages.rollout import Baseline
from shared.settings.controller import RolloutGatesSettings

_LEAST_MOMENTS = 5
_SURE = 2.0
"""So many standard errors below the bound make sure that it is no chance."""


def find_fault(
    gates: RolloutGatesSettings,
    baseline: Baseline,
    now: WorkerMetrics,
    workers: Collection[WorkerId],
    *,
    at: float,
    whole: bool,
) -> str | None:
    """Why the version is to be rolled back; None where nothing is wrong.

    Args:
        now: what all workers did since these have it.
        workers: those that have it.
        at: the time until which that is.
        whole: the time of watching is over: what needs all of it is judged, too.
    """
    if ended := sorted(now.rebooted.intersection(workers)):
        return f"worker {ended[0]} ended while it was watched"
    counts = now.counts(workers)
    if counts.engine_restarts:
        return f"an engine of {_names(workers)} ended while it was watched"
    return (
        _errors(gates, baseline, now, workers)
        or _memory(gates, now, workers)
        or _breaker(gates, now, workers)
        or _failover(gates, now, workers)
        or _batches(gates, now, workers, at)
        or (_throughput(gates, baseline, now, workers) if whole else None)
    )


def _errors(
    gates: RolloutGatesSettings,
    baseline: Baseline,
    now: WorkerMetrics,
    workers: Collection[WorkerId],
) -> str | None:
    counts = now.counts(workers)
    ended = counts.completed + counts.failed + counts.refused
    if gates.error_increase is None or ended < gates.least_requests:
        return None
    share = error_share(counts)
    if share <= baseline.error_share + gates.error_increase:
        return None
    return (
        f"{share:.0%} of {ended} requests failed or were refused at {_names(workers)}, "
        f"{baseline.error_share:.0%} before"
    )


def _memory(
    gates: RolloutGatesSettings, now: WorkerMetrics, workers: Collection[WorkerId]
) -> str | None:
    if gates.soft_memory and (above := now.soft_memory(workers)):
        return f"{_names(above)} is above its soft memory limit"
    return None


def _breaker(
    gates: RolloutGatesSettings, now: WorkerMetrics, workers: Collection[WorkerId]
) -> str | None:
    open_s = now.breaker_open_s(workers)
    if gates.breaker_open_s is None or open_s <= gates.breaker_open_s:
        return None
    return f"the circuit breaker of {_names(workers)} was open for {open_s:.0f} s"


def _failover(
    gates: RolloutGatesSettings, now: WorkerMetrics, workers: Collection[WorkerId]
) -> str | None:
    took_ms = now.failover_ms(workers)
    if gates.failover_ms is None or took_ms <= gates.failover_ms:
        return None
    return f"a request of {_names(workers)} took {took_ms:.0f} ms to go on elsewhere"


def _batches(
    gates: RolloutGatesSettings, now: WorkerMetrics, workers: Collection[WorkerId], at: float
) -> str | None:
    per_min = now.batch_changes_per_min(workers, at)
    if gates.batch_changes_per_min is None or per_min <= gates.batch_changes_per_min:
        return None
    return f"the batch size of {_names(workers)} changed {per_min:.0f} times a minute"


def _throughput(
    gates: RolloutGatesSettings,
    baseline: Baseline,
    now: WorkerMetrics,
    workers: Collection[WorkerId],
) -> str | None:
    """Beside the others, where they were busy, too: what slows all down is not the version's."""
    speed = now.speed_share(baseline.speeds, workers)
    if gates.throughput is None or speed.count < _LEAST_MOMENTS:
        return None
    others = now.speed_share(baseline.speeds, baseline.speeds.keys() - set(workers))
    expected = min(1.0, others.value) if others.count >= _LEAST_MOMENTS else 1.0
    if speed.value + _SURE * speed.error >= gates.throughput * expected:
        return None
    beside = f", {others.value:.0%} at the others" if expected < 1 else ""
    return f"{_names(workers)} makes {speed.value:.0%} of the tokens/s of before{beside}"


def _names(workers: Collection[WorkerId]) -> str:
    names = sorted(workers)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
