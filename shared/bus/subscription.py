"""A subscription that survives the connection on which it was made."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import nats.errors
from nats.aio.subscription import Subscription as ClientSubscription

from shared.bus.client import PatchedNatsClient
from shared.bus.fair_queue import FairQueue
from shared.bus.receive_statistics import ReceiveStatistics
from shared.subjects import client_of, is_any_inbox
from shared.time_slice import TimeSlice


class IncomingMessage(NamedTuple):
    """A received message. `reply` is empty if the sender expects no reply, or names a subject that
    is not an inbox.

    `no_responders` marks the server's own 503: a message that was published with this inbox as
    its reply had no subscriber. `headers` is None if the message has none.
    """

    subject: str
    reply: str
    payload: bytes
    no_responders: bool = False
    headers: Mapping[str, str] | None = None


Handler = Callable[[IncomingMessage], Awaitable[None]]
"""Called for the messages of a subscription one after another: run long work in a task."""


MAX_SLICE_S = 0.05
"""For so long the messages of one subscription are handled while others wait. Shorter slices cost a
busy controller more: it then sends its messages in smaller pieces."""


class Subscription:
    """Survives reconnects until `unsubscribe`. Messages wait in turns between clients."""

    def __init__(
        self,
        subject: str,
        queue: str,
        handler: Handler,
        statistics: ReceiveStatistics,
        forget: Callable[["Subscription"], None],
    ) -> None:
        """`forget` is called once, when the subscription must not be attached again."""
        self._forget = forget
        self._statistics = statistics
        self._subject = subject
        self._queue = queue
        self._handler = handler
        self._client: PatchedNatsClient | None = None
        self._inner: ClientSubscription | None = None
        self._waiting: FairQueue[IncomingMessage] = FairQueue()
        self._delivery: asyncio.Task[None] | None = None  # while messages wait
        self._closed = False

    async def unsubscribe(self) -> None:
        self._forget(self)
        self.close()
        await self._end_receiving()

    def close(self) -> None:
        """Deliver no more messages. A handler that calls this is not interrupted."""
        self._closed = True
        delivery, self._delivery = self._delivery, None
        if delivery is not None and delivery is not asyncio.current_task():
            delivery.cancel()

    async def attach(self, client: PatchedNatsClient) -> None:
        """Subscribe on a new client; called by the bus only."""
        if self._closed:
            return
        inner = await client.receive(self._subject, self._queue, self._receive)
        self._client, self._inner = client, inner
        if self._closed:  # meanwhile
            await self._end_receiving()

    async def _end_receiving(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None and self._client is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._client.end_receiving(inner)

    def _receive(
        self, subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | None
    ) -> None:
        if self._closed:
            return
        is_missing = headers is not None and headers.get("Status") == "503"
        reply = reply if reply and is_any_inbox(reply) else ""
        message = IncomingMessage(subject, reply, payload, is_missing, headers)
        if not self._waiting.add(client_of(subject), message, len(payload)):
            self._statistics.count_dropped("too_many", subject)
        elif self._delivery is None:
            self._delivery = asyncio.create_task(self._deliver())

    async def _deliver(self) -> None:
        """Call the handler for one message after another, until none waits."""
        time_slice = TimeSlice(MAX_SLICE_S)
        while (message := self._waiting.take()) is not None:
            await call_handler(self._handler(message), self._subject, self._statistics)
            if self._closed:
                break
            if time_slice.is_over:
                await time_slice.end()
        self._delivery = None


async def call_handler(
    handling: Awaitable[None], subject: str, statistics: ReceiveStatistics
) -> None:
    """The boundary of every handler: whatever it raises over a message is counted and logged, and
    the next message is handled. Only the end of the subscription's own task passes."""
    try:
        await handling
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        statistics.count_failed(subject, error)
    except Exception as error:
        statistics.count_failed(subject, error)
