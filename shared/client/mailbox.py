"""What came in and was not read yet: bounded, because a reader may be slow."""

import asyncio
from collections import deque

from shared.client.inbox import Arrival
from shared.errors import StreamFailed

MAX_UNREAD_BYTES = 16 * 1024 * 1024
_OVERHEAD_BYTES = 200


class Mailbox:
    """What one stream has not read yet. Too much of it ends that stream, and only that."""

    def __init__(self, *, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_unread_bytes = max_unread_bytes
        self._arrivals: deque[Arrival] = deque()
        self._unread_bytes = 0
        self._overflowed = False
        self._arrived = asyncio.Event()

    async def put(self, arrival: Arrival) -> None:
        if self._unread_bytes > self._max_unread_bytes:
            self._overflowed = True
            self._arrivals.clear()
        if not self._overflowed:
            self._arrivals.append(arrival)
            self._unread_bytes += arrival.size_bytes + _OVERHEAD_BYTES
        self._arrived.set()

    async def get(self, wait_s: float) -> Arrival | None:
        """The next one, or None when none comes within `wait_s`.

        Raises:
            StreamFailed: too much was left unread, and messages were dropped.
        """
        if not self._arrivals and not self._overflowed:
            self._arrived.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        if self._overflowed:
            limit_mb = self._max_unread_bytes / 2**20
            raise StreamFailed(
                f"more than {limit_mb:g} MB of the stream were left unread", code="slow_consumer"
            )
        arrival = self._arrivals.popleft()
        self._unread_bytes -= arrival.size_bytes + _OVERHEAD_BYTES
        return arrival
