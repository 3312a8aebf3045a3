"""How fast a worker admits requests while others wait for a slot.

Requests that find a slot at once measure how many were sent, not how many the worker can serve:
neither they nor times without a queue count.
"""

from collections import deque
from collections.abc import Callable

_MAX_INTERVALS = 32
_MIN_INTERVALS = 4
_RESET_AFTER_S = 30.0
"""After this long without a queue, old intervals are dropped: requests and the load of the machine
may have changed."""


class DrainRate:
    """Admissions per second, over the last 32 requests that had to wait.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._intervals_s: deque[float] = deque(maxlen=_MAX_INTERVALS)
        self._waiting = False
        self._observed_at = clock()
        self._since_last_s = 0.0

    @property
    def per_s(self) -> float | None:
        """The rate; None with fewer than four intervals."""
        spent_s, count = sum(self._intervals_s), len(self._intervals_s)
        return count / spent_s if spent_s > 0 and count >= _MIN_INTERVALS else None

    def observe(self, *, waiting: bool) -> None:
        """Record whether requests wait from now on."""
        now = self._clock()
        since_s, self._observed_at = now - self._observed_at, now
        if self._waiting:
            self._since_last_s += since_s
        elif waiting and since_s > _RESET_AFTER_S:
            self._intervals_s.clear()
            self._since_last_s = 0.0
        self._waiting = waiting

    def admitted(self) -> None:
        """Count an admitted request."""
        if self._waiting:
            self.observe(waiting=True)
            self._intervals_s.append(self._since_last_s)
            self._since_last_s = 0.0
