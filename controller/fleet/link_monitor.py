"""Whether this process hears NATS now: what comes after it stood still, or was cut off, may be
old."""

import time

from shared.bus import Bus
from shared.errors import BusError

_AWAY_S = 1.0


class LinkMonitor:
    """Sends itself a message a few times a second, there and back.

    Attributes:
        lapses: how often it was away.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._back_at = time.monotonic()
        self._calm_since = self._back_at
        self._connection = bus.connections
        self.lapses = 0

    @property
    def away(self) -> bool:
        """Nothing came back for more than a second, or the connection is new: others may have
        given this process up."""
        return self._connection != self._bus.connections or self._is_late(time.monotonic())

    @property
    def calm_s(self) -> float:
        """Since when each came back in time, on one connection; 0 while that is not so."""
        return 0.0 if self.away else time.monotonic() - self._calm_since

    async def check(self) -> bool:
        """Whether a message comes back now; then all that was sent before has come. Call it a few
        times a second."""
        connection = self._bus.connections
        try:
            await self._bus.flush(timeout_s=_AWAY_S)
        except BusError:
            return False
        now = time.monotonic()
        if self._is_late(now) or connection != self._connection:
            self._calm_since = now
            self.lapses += 1
        self._back_at, self._connection = now, connection
        return True

    def _is_late(self, now: float) -> bool:
        return now - self._back_at > _AWAY_S
