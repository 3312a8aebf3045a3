"""The delay between a failed attempt and the next one: exponential backoff with jitter."""

from collections.abc import Callable

from shared.settings.controller import RetrySettings


class RetrySchedule:
    """
    Args:
        rng: returns a random number from 0 to 1, so that requests that failed together are not
            retried together.
    """

    def __init__(self, settings: RetrySettings, rng: Callable[[], float]) -> None:
        self._settings = settings
        self._rng = rng

    def delay_s(self, failures: int) -> float | None:
        """Return the delay after this many failed attempts, at least 1; None if there is no further
        attempt."""
        settings = self._settings
        if not settings.enabled or failures >= settings.max_attempts:
            return None
        return self.backoff_s(failures)

    def backoff_s(self, failures: int) -> float:
        """Return the delay after this many failed attempts, regardless of the maximum."""
        settings = self._settings
        delay_ms = float(settings.initial_delay_ms)
        for _ in range(failures - 1):  # a power would overflow long after the limit is reached
            delay_ms = min(settings.max_delay_ms, delay_ms * settings.multiplier)
        jitter = 1 + settings.jitter * (2 * self._rng() - 1)
        return min(delay_ms, settings.max_delay_ms) * jitter / 1000
