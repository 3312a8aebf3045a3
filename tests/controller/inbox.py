"""What one client of a controller is sent."""

import asyncio

from shared.bus import Bus, IncomingMessage
from shared.messages.stream import DoneMessage, FailedMessage, StatusMessage, StreamMessage
from shared.messages.stream import decode as decode_stream
from tests.controller.simulated_worker import WAIT_S


class Inbox:
    """What one client is sent."""

    def __init__(self, bus: Bus, subject: str) -> None:
        self.subject = subject
        self._bus = bus
        self._messages: asyncio.Queue[StreamMessage] = asyncio.Queue()

    async def open(self) -> "Inbox":
        self._subscription = await self._bus.subscribe(self.subject, self._take)
        return self

    async def leave(self) -> None:
        """Listen no more, without a word."""
        await self._subscription.unsubscribe()

    async def _take(self, message: IncomingMessage) -> None:
        for one in decode_stream(message.payload):
            self._messages.put_nowait(one)

    async def next(self, limit_s: float = WAIT_S) -> StreamMessage:
        return await asyncio.wait_for(self._messages.get(), limit_s)

    async def accepted(self) -> StatusMessage:
        """What its worker says first, after what the leader may say while none has it."""
        message = await self.next()
        while isinstance(message, StatusMessage) and message.status == "queued":
            message = await self.next()
        assert isinstance(message, StatusMessage) and message.status == "accepted", message
        return message

    async def last(self) -> StreamMessage:
        """The next message but those that say how the request stands."""
        message = await self.next()
        while isinstance(message, StatusMessage):
            message = await self.next()
        return message

    async def done(self) -> DoneMessage:
        """The next message, likewise: the good end."""
        message = await self.last()
        assert isinstance(message, DoneMessage), message
        return message

    async def end(self) -> FailedMessage:
        """The next message, likewise: the bad end."""
        return failed(await self.last())

    def rest_of_status(self) -> list[StatusMessage]:
        """The same: nothing but how the request stands."""
        rest = self.rest()
        assert all(isinstance(message, StatusMessage) for message in rest), rest
        return [message for message in rest if isinstance(message, StatusMessage)]

    def rest(self) -> list[StreamMessage]:
        """What is there without waiting."""
        return [self._messages.get_nowait() for _ in range(self._messages.qsize())]


def failed(message: StreamMessage) -> FailedMessage:
    assert isinstance(message, FailedMessage)
    return message
