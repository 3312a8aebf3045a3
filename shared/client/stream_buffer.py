"""What came in and was not read yet: bounded, because a reader may be slow."""

import asyncio
from collections import deque

from shared.client.inboxes import ReceivedMessage
from shared.errors import StreamFailed

MAX_UNREAD_BYTES = 16 * 1024 * 1024
_OVERHEAD_BYTES = 200


class StreamBuffer:
    """What one stream has not read yet. Too much of it ends that stream, and only that."""

    def __init__(self, *, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_unread_bytes = max_unread_bytes
        self._arrivals: deque[ReceivedMessage] = deque()
        self._unread_bytes = 0
        self._overflowed = False
        self._reader: asyncio.Future[None] | None = None  # who waits

    async def put(self, arrival: ReceivedMessage) -> None:
        if self._unread_bytes > self._max_unread_bytes:
            self._overflowed = True
            self._arrivals.clear()
        if not self._overflowed:
            self._arrivals.append(arrival)
            self._unread_bytes += arrival.size_bytes + _OVERHEAD_BYTES
        self._wake()

    async def get(self, wait_s: float) -> ReceivedMessage | None:
        """The next one, or None when none comes within `wait_s`.

        Raises:
            StreamFailed: too much was left unread, and messages were dropped.
        """
        if not self._arrivals and not self._overflowed:
            await self._wait(wait_s)
        if self._overflowed:
            limit_mb = self._max_unread_bytes / 2**20
            raise StreamFailed(
                f"more than {limit_mb:g} MB of the stream were left unread", code="slow_consumer"
            )
        if not self._arrivals:
            return None
        arrival = self._arrivals.popleft()
        self._unread_bytes -= arrival.size_bytes + _OVERHEAD_BYTES
        return arrival

    async def _wait(self, limit_s: float) -> None:
        """Until something comes. By hand, as every token of every stream comes through here, and
        `asyncio.timeout` costs twice as much."""
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        timer = loop.call_later(limit_s, self._wake)
        try:
            await self._reader
        finally:
            timer.cancel()
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
