"""What came in and was not read yet: bounded, because a reader may be slow."""

import asyncio
from collections import deque

from shared.bus import Message
from shared.errors import StreamFailed

MAX_UNREAD_BYTES = 16 * 1024 * 1024
_MESSAGE_OVERHEAD_BYTES = 200


class Mailbox:
    """The unread messages of one stream. Too many of them end that stream, and only that."""

    def __init__(self, *, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_unread_bytes = max_unread_bytes
        self._messages: deque[Message] = deque()
        self._unread_bytes = 0
        self._overflowed = False
        self._arrived = asyncio.Event()

    async def put(self, message: Message) -> None:
        if self._unread_bytes > self._max_unread_bytes:
            self._overflowed = True
            self._messages.clear()
        if not self._overflowed:
            self._messages.append(message)
            self._unread_bytes += len(message.payload) + _MESSAGE_OVERHEAD_BYTES
        self._arrived.set()

    async def get(self, wait_s: float) -> Message | None:
        """The next message, or None when none comes within `wait_s`.

        Raises:
            StreamFailed: too much was left unread, and messages were dropped.
        """
        if not self._messages and not self._overflowed:
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
        message = self._messages.popleft()
        self._unread_bytes -= len(message.payload) + _MESSAGE_OVERHEAD_BYTES
        return message
