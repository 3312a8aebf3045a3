"""Statistics of the queue: counts and waiting times by priority, and the drain rate."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.messages.base import PRIORITIES, Priority
from shared.messages.worker_report import QueuePriorityStatus, QueueStatus

_RATE_WINDOW_S = 30.0
_MAX_WAITS = 512
_DEFAULT_RETRY_S = 1.0
_MIN_RETRY_S = 0.1
_MAX_RETRY_S = 60.0


@dataclass(slots=True)
class _Level:
    admitted: int = 0
    rejected: int = 0
    dropped: int = 0
    promoted: int = 0
    waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_WAITS))


class QueueStatistics:
    """Counts since the start, waiting times of the last 512 requests per priority, and the rate of
    the last half minute.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._levels: dict[Priority, _Level] = {level: _Level() for level in PRIORITIES}
        self._left: deque[float] = deque()
        self._started_at = clock()
        self._booked_until = 0.0

    def admitted(self, level: Priority, wait_s: float) -> None:
        self._levels[level].admitted += 1
        self._levels[level].waits_s.append(wait_s)
        self.left()

    def left(self) -> None:
        """Count a request that left the queue, admitted or not."""
        self._left.append(self._clock())

    def rejected(self, level: Priority) -> None:
        self._levels[level].rejected += 1

    def dropped(self, level: Priority) -> None:
        self._levels[level].dropped += 1

    def promoted(self, level: Priority) -> None:
        self._levels[level].promoted += 1

    @property
    def drain_per_s(self) -> float:
        """Requests that leave the queue per second."""
        now = self._clock()
        while self._left and now - self._left[0] > _RATE_WINDOW_S:
            self._left.popleft()
        window_s = min(_RATE_WINDOW_S, now - self._started_at)
        return len(self._left) / window_s if window_s > 0 else 0.0

    def book_retry_ms(self) -> int:
        """Return when a request that found the queue full may be sent again. Each call books the
        next entry that becomes free, so that rejected requests do not all return at once."""
        now, rate = self._clock(), self.drain_per_s
        if rate == 0:
            return int(_DEFAULT_RETRY_S * 1000)
        self._booked_until = max(now, self._booked_until) + 1 / rate
        self._booked_until = min(self._booked_until, now + _MAX_RETRY_S)
        return int(1000 * max(_MIN_RETRY_S, self._booked_until - now))

    def status(self, queued: dict[Priority, int], capacity: dict[Priority, int]) -> QueueStatus:
        levels = {
            name: QueuePriorityStatus(
                queued=queued.get(name, 0),
                admitted=level.admitted,
                rejected=level.rejected,
                dropped=level.dropped,
                promoted=level.promoted,
                wait_p50_ms=_percentile_ms(level.waits_s, 0.5),
                wait_p95_ms=_percentile_ms(level.waits_s, 0.95),
            )
            for name, level in self._levels.items()
        }
        return QueueStatus(levels=levels, room=capacity, drain_per_s=round(self.drain_per_s, 2))


def _percentile_ms(waits_s: deque[float], share: float) -> float:
    if not waits_s:
        return 0.0
    ordered = sorted(waits_s)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
