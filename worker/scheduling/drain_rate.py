"""How fast a worker takes requests from its queue while there are any that wait for a place.

Those who found one at once tell how many came, and not how many it could serve: neither they nor
the time without a queue count.
"""

from collections import deque
from collections.abc import Callable

_KEPT = 32
_ENOUGH = 4
_FORGOTTEN_AFTER_S = 30.0
"""After so long without a queue, what comes may be other work, and others use the machine."""


class DrainRate:
    """Requests a second, of the last ones that were admitted after a wait.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._intervals_s: deque[float] = deque(maxlen=_KEPT)
        self._waiting = False
        self._observed_at = clock()
        self._since_last_s = 0.0

    @property
    def per_s(self) -> float | None:
        """None while it is too few to tell."""
        spent_s, count = sum(self._intervals_s), len(self._intervals_s)
        return count / spent_s if spent_s > 0 and count >= _ENOUGH else None

    def observe(self, *, waiting: bool) -> None:
        """Whether anybody waits from now on."""
        now = self._clock()
        since_s, self._observed_at = now - self._observed_at, now
        if self._waiting:
            self._since_last_s += since_s
        elif waiting and since_s > _FORGOTTEN_AFTER_S:
            self._intervals_s.clear()
            self._since_last_s = 0.0
        self._waiting = waiting

    def admitted(self) -> None:
        """One request got a place."""
        if self._waiting:
            self.observe(waiting=True)
            self._intervals_s.append(self._since_last_s)
            self._since_last_s = 0.0
