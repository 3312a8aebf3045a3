"""Received messages that were not read yet: bounded, because a reader may be slow."""

import asyncio
from collections import deque

from shared.client.inboxes import StreamDelivery
from shared.errors import StreamFailed

MAX_UNREAD_BYTES = 16 * 1024 * 1024
_OVERHEAD_BYTES = 200


class StreamBuffer:
    """The unread messages of one stream. Too many bytes end this stream, and no other."""

    def __init__(self, *, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_unread_bytes = max_unread_bytes
        self._messages: deque[StreamDelivery] = deque()
        self._unread_bytes = 0
        self._overflowed = False
        self._reader: asyncio.Future[None] | None = None

    async def put(self, message: StreamDelivery) -> None:
        if self._unread_bytes > self._max_unread_bytes:
            self._overflowed = True
            self._messages.clear()
        if not self._overflowed:
            self._messages.append(message)
            self._unread_bytes += message.size_bytes + _OVERHEAD_BYTES
        self._wake()

    async def get(self, wait_s: float) -> StreamDelivery | None:
        """Return the next message, or None if there is none within `wait_s`.

        Raises:
            StreamFailed: too much was left unread, and messages were dropped.
        """
        if not self._messages and not self._overflowed:
            await self._wait(wait_s)
        if self._overflowed:
            limit_mb = self._max_unread_bytes / 2**20
            raise StreamFailed(
                f"more than {limit_mb:g} MB of the stream were left unread", code="slow_consumer"
            )
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._unread_bytes -= message.size_bytes + _OVERHEAD_BYTES
        return message

    async def _wait(self, limit_s: float) -> None:
        """Wait for a message. Without `asyncio.timeout`, which costs twice as much: every token of
        every stream passes here."""
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
