"""Monitors the link of this process to NATS: what arrives after a stall of the process or of its
connection may be outdated."""

import time

from shared.bus import Bus
from shared.errors import BusError

_STALLED_S = 1.0


class LinkMonitor:
    """Measures round trips to the NATS server a few times a second.

    Attributes:
        stalls: how many stalls have ended.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._last_reply_at = time.monotonic()
        self._stable_since = self._last_reply_at
        self._connection = bus.connections
        self.stalls = 0

    @property
    def stalled(self) -> bool:
        """Whether no round trip was completed for more than a second, or the connection is new:
        other processes may take this one for dead."""
        return self._connection != self._bus.connections or self._is_late(time.monotonic())

    @property
    def stable_s(self) -> float:
        """For how long every round trip was in time, on one connection; 0 during a stall."""
        return 0.0 if self.stalled else time.monotonic() - self._stable_since

    async def check(self) -> bool:
        """Whether a round trip succeeds now; everything sent to this process before has arrived
        then. Call it a few times a second."""
        connection = self._bus.connections
        try:
            await self._bus.flush(timeout_s=_STALLED_S)
        except BusError:
            return False
        now = time.monotonic()
        if self._is_late(now) or connection != self._connection:
            self._stable_since = now
            self.stalls += 1
        self._last_reply_at, self._connection = now, connection
        return True

    def _is_late(self, now: float) -> bool:
        return now - self._last_reply_at > _STALLED_S
