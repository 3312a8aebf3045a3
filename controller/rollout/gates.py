"""Gates: whether workers with a new version do worse than before. Pure functions: no I/O."""

from collections.abc import Collection

from controller.rollout.worker_metrics import PeriodMetrics, error_share
from shared.ids import WorkerId
from shared.messages.rollout import Baseline
from shared.settings.controller import RolloutGatesSettings

_MIN_SAMPLES = 5
_STANDARD_ERRORS = 2.0
"""By how many standard errors the throughput must miss its bound, so that chance is no cause."""


def find_violation(
    gates: RolloutGatesSettings,
    baseline: Baseline,
    current: PeriodMetrics,
    workers: Collection[WorkerId],
    *,
    at: float,
    complete: bool,
) -> str | None:
    """Return why the version must be rolled back; None if no gate is violated.

    Args:
        current: metrics of all workers since these run the version.
        workers: those that run the version.
        at: end of the measurement, seconds since 1970.
        complete: the bake time is over: gates that need all of it are checked, too.
    """
    if ended := sorted(current.rebooted.intersection(workers)):
        return f"worker {ended[0]} ended while it was watched"
    counts = current.counts(workers)
    if counts.engine_restarts:
        return f"an engine of {_names(workers)} ended while it was watched"
    return (
        _errors(gates, baseline, current, workers)
        or _memory(gates, current, workers)
        or _breaker(gates, current, workers)
        or _failover(gates, current, workers)
        or _batches(gates, current, workers, at)
        or (_throughput(gates, baseline, current, workers) if complete else None)
    )


def _errors(
    gates: RolloutGatesSettings,
    baseline: Baseline,
    current: PeriodMetrics,
    workers: Collection[WorkerId],
) -> str | None:
    counts = current.counts(workers)
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
    gates: RolloutGatesSettings, current: PeriodMetrics, workers: Collection[WorkerId]
) -> str | None:
    if gates.soft_memory and (above := current.soft_memory(workers)):
        return f"{_names(above)} is above its soft memory limit"
    return None


def _breaker(
    gates: RolloutGatesSettings, current: PeriodMetrics, workers: Collection[WorkerId]
) -> str | None:
    open_s = current.breaker_open_s(workers)
    if gates.breaker_open_s is None or open_s <= gates.breaker_open_s:
        return None
    return f"the circuit breaker of {_names(workers)} was open for {open_s:.0f} s"


def _failover(
    gates: RolloutGatesSettings, current: PeriodMetrics, workers: Collection[WorkerId]
) -> str | None:
    took_ms = current.failover_ms(workers)
    if gates.failover_ms is None or took_ms <= gates.failover_ms:
        return None
    return f"a request of {_names(workers)} took {took_ms:.0f} ms to migrate"


def _batches(
    gates: RolloutGatesSettings, current: PeriodMetrics, workers: Collection[WorkerId], at: float
) -> str | None:
    per_min = current.batch_changes_per_min(workers, at)
    if gates.batch_changes_per_min is None or per_min <= gates.batch_changes_per_min:
        return None
    return f"the batch size of {_names(workers)} changed {per_min:.0f} times a minute"


def _throughput(
    gates: RolloutGatesSettings,
    baseline: Baseline,
    current: PeriodMetrics,
    workers: Collection[WorkerId],
) -> str | None:
    """Compare with the other workers, if they were busy, too: the version is not the cause of a
    slowdown of all workers."""
    speed = current.speed_share(baseline.speeds, workers)
    if gates.throughput is None or speed.count < _MIN_SAMPLES:
        return None
    others = current.speed_share(baseline.speeds, baseline.speeds.keys() - set(workers))
    expected = min(1.0, others.value) if others.count >= _MIN_SAMPLES else 1.0
    if speed.value + _STANDARD_ERRORS * speed.error >= gates.throughput * expected:
        return None
    compared = f", {others.value:.0%} at the others" if expected < 1 else ""
    return f"{_names(workers)} reaches {speed.value:.0%} of the tokens/s of before{compared}"


def _names(workers: Collection[WorkerId]) -> str:
    names = sorted(workers)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
