"""When an attempt that failed is followed by another one: exponential backoff with jitter."""

from collections.abc import Callable

from shared.settings.controller import RetrySettings


class RetrySchedule:
    """Args:
    draw: a random number from 0 to 1, so that requests that failed together do not come together.
    """

    def __init__(self, settings: RetrySettings, rng: Callable[[], float]) -> None:
        self._settings = settings
        self._rng = rng

    def delay_s(self, failures: int) -> float | None:
        """How long to wait after so many attempts failed, from 1 on; None where it is enough."""
        settings = self._settings
        if not settings.enabled or failures >= settings.max_attempts:
            return None
        return self.pause_s(failures)

    def pause_s(self, failures: int) -> float:
        """The same, however often it is tried."""
        settings = self._settings
        delay_ms = float(settings.initial_delay_ms)
        for _ in range(failures - 1):  # a power would overflow long after the limit is reached
            delay_ms = min(settings.max_delay_ms, delay_ms * settings.multiplier)
        jitter = 1 + settings.jitter * (2 * self._rng() - 1)
        return min(delay_ms, settings.max_delay_ms) * jitter / 1000
