"""Tokens per second over the last ten minutes, of each worker."""

import time
from collections import deque
from collections.abc import Mapping
from itertools import islice

from shared.ids import WorkerId

STEP_S = 10
STEPS = 60


class RateHistory:
    """Mean rates in steps of 10 s. A step without a sample is None."""

    def __init__(self) -> None:
        self._step = 0
        self._sums: dict[WorkerId, tuple[float, int]] = {}
        self._totals: tuple[float, int] = (0.0, 0)
        self._workers: dict[WorkerId, deque[float | None]] = {}
        self._total: deque[float | None] = deque([None] * STEPS, maxlen=STEPS)

    def record(self, rates: Mapping[WorkerId, float], now: float | None = None) -> None:
        """Record the current rate of every worker; workers that are missing are forgotten.

        Args:
            now: on the monotonic clock.
        """
        step = int((time.monotonic() if now is None else now) // STEP_S)
        for _ in range(min(step - self._step, STEPS)):
            self._end_step()
        self._step = step
        for worker in [worker for worker in self._workers if worker not in rates]:
            del self._workers[worker]
            self._sums.pop(worker, None)
        for worker, rate in rates.items():
            self._workers.setdefault(worker, deque([None] * STEPS, maxlen=STEPS))
            total, count = self._sums.get(worker, (0.0, 0))
            self._sums[worker] = total + rate, count + 1
        total, count = self._totals
        self._totals = total + sum(rates.values()), count + 1

    def _end_step(self) -> None:
        for worker, history in self._workers.items():
            history.append(_mean(*self._sums.get(worker, (0.0, 0))))
        self._total.append(_mean(*self._totals))
        self._sums.clear()
        self._totals = 0.0, 0

    def worker(self, worker: WorkerId) -> list[float | None]:
        """Return the means of a worker, the oldest first; the last one is of the current step."""
        history = self._workers.get(worker)
        if history is None:
            return [None] * STEPS
        return _with_current(history, self._sums.get(worker, (0.0, 0)))

    @property
    def total(self) -> list[float | None]:
        """The means of all workers together."""
        return _with_current(self._total, self._totals)


def _with_current(history: deque[float | None], current: tuple[float, int]) -> list[float | None]:
    return [*islice(history, 1, None), _mean(*current)]


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 1) if count else None
