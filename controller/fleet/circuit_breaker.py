"""A circuit breaker: it stops requests to a worker that failed several times, then tries the worker
again with a few requests (Nygard, "Release It!", 2007).

A state machine with the clock passed in: no I/O.
"""

from collections import deque
from typing import Literal

from shared.settings.controller import CircuitBreakerSettings as Limits

BreakerState = Literal["closed", "open", "half-open"]

_SAME_CAUSE_S = 0.1
"""Failures within this time count once: the death of a worker with ten streams is one failure."""


class CircuitBreaker:
    """Counts the outcomes of the requests that were sent to one worker.

    Attributes:
        times_opened: how often the breaker opened.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._state: BreakerState = "closed"
        self._failures: deque[float] = deque()
        self._opened_by: list[float] = []
        self._reopens_at = 0.0
        self._trials: set[int] = set()
        self._last_before_trials = 0
        self._successes = 0
        self._calls = 0
        self.times_opened = 0

    def state(self, now: float) -> BreakerState:
        """Return the state; an open breaker becomes half-open after `recovery_timeout_ms`."""
        if self._state == "open" and now >= self._reopens_at:
            self._state, self._successes = "half-open", 0
            self._trials.clear()
            self._last_before_trials = self._calls
        return self._state

    def admits(self, now: float) -> bool:
        """Whether one more request may be sent to the worker."""
        match self.state(now):
            case "closed":
                return True
            case "open":
                return False
            case "half-open":
                return len(self._trials) < self._limits.half_open_max_calls

    def retry_after_ms(self, now: float) -> int:
        """Return the time until the breaker becomes half-open; 0 if it is not open. A half-open
        breaker that admits no request waits for a trial to end, at an unknown time."""
        if self.state(now) != "open":
            return 0
        return max(1, round(1000 * (self._reopens_at - now)))

    def begin(self, now: float) -> int:
        """Record that a request is sent; returns the call number for reporting its end, once."""
        half_open = self.state(now) == "half-open"
        self._calls += 1
        if half_open:
            self._trials.add(self._calls)
        return self._calls

    def succeeded(self, call: int, now: float) -> None:
        """Record that the worker served the request."""
        if self.state(now) != "half-open" or call not in self._trials:
            return
        self._trials.remove(call)
        self._successes += 1
        if self._successes >= self._limits.half_open_success_threshold:
            self._state = "closed"
            self._failures.clear()
            self._trials.clear()

    def failed(self, call: int, now: float) -> None:
        """Record that the request failed by a fault of the worker."""
        match self.state(now):
            case "half-open" if call > self._last_before_trials:
                self._open(now)  # also for a trial that was first recorded as a success
            case "closed":
                self._count(now)
            case _:
                pass  # sent before the breaker opened: this failure says nothing new

    def abandoned(self, call: int) -> None:
        """Record that the request ended and says nothing about the worker."""
        self._trials.discard(call)

    def abandon_all(self) -> None:
        """Drop all calls: their ends will not be reported."""
        self._trials.clear()

    def count_as_one_failure(self, since: float, now: float) -> None:
        """Merge all failures since `since`, when the worker fell silent or ended, into one; closes
        the breaker if only the merged failures had opened it."""
        is_open = self.state(now) == "open"
        counted = self._opened_by if is_open else self._failures
        earlier = [at for at in counted if at < since]
        if len(earlier) == len(counted):
            return
        if is_open and len(earlier) + 1 >= self._limits.failure_threshold:
            return
        if is_open:
            self._state = "closed"
        self._failures = deque([*earlier, now])

    def _count(self, now: float) -> None:
        horizon = now - self._limits.failure_window_ms / 1000
        while self._failures and self._failures[0] <= horizon:
            self._failures.popleft()
        if self._failures and now - self._failures[-1] < _SAME_CAUSE_S:
            return
        self._failures.append(now)
        if len(self._failures) >= self._limits.failure_threshold:
            self._open(now)

    def _open(self, now: float) -> None:
        self._state = "open"
        self._opened_by = list(self._failures)
        self._reopens_at = now + self._limits.recovery_timeout_ms / 1000
        self._failures.clear()
        self._trials.clear()
        self.times_opened += 1
