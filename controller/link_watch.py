"""Whether silence means anything: it does not while our own link to NATS does not work."""

import asyncio
import math
import time

from shared.bus import Bus
from shared.changes import Changes
from shared.errors import BusError

_MIN_PATIENCE_S = 0.5
_MOST_BETWEEN_S = 0.25
_FRESH_S = 1.0
_STRAGGLES_S = 2.0
"""So long after a silence there may still come what clients sent again because of it."""
_REPLACED_AFTER_S = 2.0
"""Clients ask again for what was accepted after 3 s without a word; the last one is up to a second
old."""


class LinkWatch:
    """Sends itself a message each interval, or more often, there and back.

    Attributes:
        returned: told of each that came back.
        away_at: when a time ended, if ever, in which other controllers may have taken us for gone:
            nothing came back for a while, or the connection ended.
        replaced_at: the same for clients, who are more patient.
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
        self._back_at: float | None = None
        self._gap_s = 0.0
        self.returned = Changes()
        self.away_at: float | None = None
        self.replaced_at: float | None = None

    @property
    def out_of_touch(self) -> bool:
        """What comes now may be a second old: it lay in a buffer while this process stood still, or
        was cut off. It is all there when messages come back in time again."""
        if self._back_at is None:
            return False
        return max(self._gap_s, time.monotonic() - self._back_at) > _FRESH_S

    @property
    def lately_away(self) -> bool:
        """Other controllers may have been asked for what comes now, because we were silent."""
        back_s = math.inf if self.away_at is None else time.monotonic() - self.away_at
        return self.out_of_touch or back_s < _STRAGGLES_S

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
            await asyncio.sleep(min(self._interval_s, _MOST_BETWEEN_S))

    def distrust(self) -> None:
        """Old silence means nothing now: this process was stopped."""
        self.trusted_since = None

    def note_new_connection(self) -> None:
        """The one before has ended: who probed us meanwhile met nobody."""
        self.distrust()
        self.away_at = time.monotonic()

    async def _comes_back(self) -> bool:
        self._sent_at = time.monotonic()
        try:
            await self._bus.flush(timeout_s=max(self._interval_s, _MIN_PATIENCE_S))
        except BusError:
            return False
        finally:
            self._took_s, self._sent_at = time.monotonic() - self._sent_at, None
        self._note_back(time.monotonic())
        return True

    def _note_back(self, now: float) -> None:
        if self._back_at is not None:
            self._gap_s = now - self._back_at
            if self._gap_s > _FRESH_S:
                self.away_at = now
            if self._gap_s > _REPLACED_AFTER_S:
                self.replaced_at = now
        self._back_at = now
        self.returned.notify()
