"""The lease record of the leader, as JetStream stores it."""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from shared.bus import Subscription
from shared.bus.lease_store import LeaseEntry
from shared.codec import decode
from shared.errors import DecodeError
from shared.messages.controller_report import LeaseRecord

logger = logging.getLogger(__name__)


class LeaseBackend(Protocol):
    """Stores the lease record: `shared.bus.LeaseStore`."""

    async def read(self, *, timeout_s: float) -> LeaseEntry: ...

    async def write(self, value: bytes, *, after: int, ttl_s: int, timeout_s: float) -> int: ...

    async def on_written(self, handler: Callable[[bytes], Awaitable[None]]) -> Subscription: ...


class LeaseReader:
    """Reads what is stored, and logs once what cannot be read."""

    def __init__(self) -> None:
        self._unreadable = 0  # the sequence

    def record(self, stored: LeaseEntry) -> LeaseRecord | None:
        """Return None if there is no leader, or the record cannot be read."""
        if not stored.value:
            return None
        try:
            return decode(LeaseRecord, stored.value)
        except DecodeError as error:
            if stored.sequence != self._unreadable:
                logger.error("the leader's record cannot be read: %s", error.message)
            self._unreadable = stored.sequence
            return None
