"""Whether silence means anything: it does not while our own link to NATS does not work."""

import asyncio
import time

from shared.bus import Bus
from shared.errors import BusError

_MIN_PATIENCE_S = 0.5


class LinkWatch:
    """Sends itself a message each interval, there and back.

    Attributes:
        trusted_since: since when (monotonic) each came back in time, on one connection; None
            while that is not so.
        delay_s: how late what others say may be heard: as late as the last one came back, or as
            the one that is on its way is already.
    """

    def __init__(self, bus: Bus, interval_s: float) -> None:
        self._bus = bus
        self._interval_s = interval_s
        self._connection = 0
        self.trusted_since: float | None = None
        self._took_s = 0.0
        self._sent_at: float | None = None

    @property
    def delay_s(self) -> float:
        on_its_way_s = 0.0 if self._sent_at is None else time.monotonic() - self._sent_at
        return max(self._took_s, on_its_way_s)

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
        self._sent_at = time.monotonic()
        try:
            await self._bus.flush(timeout_s=max(self._interval_s, _MIN_PATIENCE_S))
        except BusError:
            return False
        finally:
            self._took_s, self._sent_at = time.monotonic() - self._sent_at, None
        return True
