"""One who listens to a stream under a real inbox, asks for what was said, and may leave."""

import asyncio
from collections.abc import Callable
from typing import Self

import orjson

from shared import subjects
from shared.bus import Bus, IncomingMessage, Subscription
from shared.change_notifier import ChangeNotifier
from shared.codec import decode
from shared.errors import DecodeError
from shared.ids import ClientName, WorkerId
from shared.messages.control import ResendState
from shared.messages.stream import DoneMessage, FailedMessage, StreamMessage
from shared.messages.stream import decode as decode_stream
from tests.worker.heard import Heard
from tests.worker.running_agent import CLIENT, LIMIT_S


class Listener(Heard):
    """What came to one inbox. `states` are the answers to what it asked."""

    def __init__(self, bus: Bus, inbox: str) -> None:
        self.inbox = inbox
        self.states: list[ResendState] = []
        self._bus = bus
        self._messages: list[StreamMessage] = []
        self._changes = ChangeNotifier()
        self._subscription: Subscription | None = None

    @classmethod
    async def open(cls, bus: Bus, inbox: str | None = None) -> Self:
        listener = cls(bus, inbox or bus.new_inbox())
        listener._subscription = await bus.subscribe(listener.inbox, listener._take)
        await bus.flush(timeout_s=LIMIT_S)
        return listener

    async def leave(self) -> None:
        assert self._subscription is not None
        await self._subscription.unsubscribe()
        await self._bus.flush(timeout_s=LIMIT_S)

    @property
    def messages(self) -> list[StreamMessage]:
        return self._messages

    async def send_question(
        self, worker: WorkerId, *, client: ClientName = CLIENT, **query: object
    ) -> None:
        """Ask a worker for what a stream said; what follows comes to `messages`."""
        subject = subjects.resend(worker, client)
        await self._bus.publish(subject, orjson.dumps(query), reply=self.inbox)

    async def ask(
        self, worker: WorkerId, *, client: ClientName = CLIENT, **query: object
    ) -> ResendState:
        """Send a question and wait for its answer."""
        answered = len(self.states)
        await self.send_question(worker, client=client, **query)
        await self.until(lambda: len(self.states) > answered)
        return self.states[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self._changes.wait_until(condition)

    async def has_tokens(self, count: int) -> None:
        await self.until(lambda: len(self.token_ids()) >= count)

    async def ended(self) -> DoneMessage | FailedMessage:
        await self.until(lambda: bool(self.ends))
        return self.ends[0]

    async def _take(self, message: IncomingMessage) -> None:
        try:
            self.states.append(decode(ResendState, message.payload))
        except DecodeError:
            self._messages.extend(decode_stream(message.payload))
        self._changes.notify()
