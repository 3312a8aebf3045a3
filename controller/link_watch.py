"""Whether silence means anything: it does not while our own link to NATS does not work."""

import asyncio
import contextlib
import time

from shared.bus import Bus
from shared.errors import BusError

_MIN_PATIENCE_S = 0.5


class LinkWatch:
    """Sends itself a message each interval, there and back.

    Attributes:
        trusted_since: since when (monotonic) each came back in time, on one connection; None
            while that is not so.
    """

    def __init__(self, bus: Bus, interval_s: float) -> None:
        self._bus = bus
        self._interval_s = interval_s
        self._connection = 0
        self.trusted_since: float | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            if await self._comes_back():
                if self.trusted_since is None or self._connection != self._bus.connections:
                    self.trusted_since = time.monotonic()
                self._connection = self._bus.connections
            else:
                self.trusted_since = None
            await asyncio.sleep(self._interval_s)

    def distrust(self) -> None:
        """Something happened after which old silence means nothing: this process was
        stopped, or the connection is new."""
        self.trusted_since = None

    async def _comes_back(self) -> bool:
        with contextlib.suppress(BusError):
            await self._bus.flush(timeout_s=max(self._interval_s, _MIN_PATIENCE_S))
            return True
        return False
