"""A subscription that survives the connection on which it was made."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription

from shared.subjects import is_any_inbox


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


logger = logging.getLogger(__name__)

_MAX_TURN_S = 0.01
"""After this time other tasks run: the client delivers all pending messages without a pause."""


class Subscription:
    """Survives reconnects until `unsubscribe`."""

    def __init__(
        self,
        subject: str,
        queue: str,
        handler: Handler,
        forget: Callable[["Subscription"], None],
    ) -> None:
        """`forget` is called once, when the subscription must not be attached again."""
        self._forget = forget
        self._subject = subject
        self._queue = queue
        self._handler = handler
        self._inner: ClientSubscription | None = None
        self._began_at = 0.0

    async def unsubscribe(self) -> None:
        self._forget(self)
        inner, self._inner = self._inner, None
        if inner is not None:
            with contextlib.suppress(nats.errors.Error):
                await inner.unsubscribe()

    async def attach(self, client: Client) -> None:
        """Subscribe on a new client; called by the bus only."""
        self._inner = await client.subscribe(self._subject, queue=self._queue, cb=self._deliver)

    async def _deliver(self, msg: Msg) -> None:
        headers = msg.headers
        is_missing = headers is not None and headers.get("Status") == "503"
        reply = msg.reply if is_any_inbox(msg.reply) else ""
        message = IncomingMessage(msg.subject, reply, msg.data, is_missing, headers)
        try:
            await self._handler(message)
        except Exception:
            logger.exception("the handler of %s failed", self._subject)
        if time.monotonic() - self._began_at > _MAX_TURN_S:
            await asyncio.sleep(0)  # lets timers and other subscriptions run
            self._began_at = time.monotonic()
