"""Inboxes of streams: one per stream, or one that many streams share.

The messages of requests with `multiplex` are sent together to their common inbox: one message per
worker and decode step, however many streams there are.
"""

import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from shared.bus import Bus, IncomingMessage, Subscription
from shared.codec import decode
from shared.errors import DecodeError
from shared.ids import RequestId
from shared.messages.control import RequestState, ResendState
from shared.messages.stream import DoneMessage, FailedMessage, StreamMessage
from shared.messages.stream import decode as decode_stream

logger = logging.getLogger(__name__)

_CANCEL_AGAIN_S = 1.0
_MAX_ABANDONED = 4096

ReplyKind = Literal["stream", "state", "resent"]
"""A reply to the request itself, to a query of its state, or to a resend query. Each has a subject
of its own, so that a 503 tells which responder is missing."""


@dataclass(frozen=True, slots=True)
class NoResponderStatus:
    """There is no leader, no controller that knows requests, or no worker that can resend."""

    kind: ReplyKind


@dataclass(frozen=True, slots=True)
class StreamDelivery:
    """Content that was received for one stream."""

    content: list[StreamMessage] | RequestState | ResendState | NoResponderStatus
    size_bytes: int


Deliver = Callable[[StreamDelivery], Awaitable[None]]
Cancel = Callable[[], Awaitable[None]]


class InboxSubscription(Protocol):
    """The subscription of a stream to an inbox."""

    def reply(self, kind: ReplyKind) -> str:
        """Return the subject for replies."""

    async def leave(self, cancel: Cancel | None) -> None:
        """Unsubscribe.

        Args:
            cancel: cancels the request; None if it has ended. The caller has cancelled it once. A
                shared inbox calls this again for messages that still arrive: the first cancel may
                be lost, and the worker finds a subscriber as long as any stream uses the inbox.
        """


class StreamInbox(Protocol):
    """Receives the messages of streams."""

    multiplex: bool

    async def join(self, request: RequestId, deliver: Deliver) -> InboxSubscription:
        """Call `deliver` with each message for a request, until the subscription is left.

        Raises:
            BusError: the connection is closed.
        """


class DedicatedInbox:
    """Each stream has a subscription of its own."""

    multiplex = False

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def join(self, request: RequestId, deliver: Deliver) -> InboxSubscription:
        async def on_message(message: IncomingMessage) -> None:
            if (received := _read(message)) is not None:
                await deliver(received)

        prefix = self._bus.new_inbox()
        return _DedicatedSubscription(prefix, await self._bus.subscribe(f"{prefix}.*", on_message))


class SharedInbox:
    """All streams of a connection share one subscription.

    Args:
        prefix: of its subjects; no other inbox may use it.
        clock: seconds, monotonic.
    """

    multiplex = True

    def __init__(self, bus: Bus, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._prefix = prefix
        self._clock = clock
        self._abandoned: OrderedDict[RequestId, _Abandoned] = OrderedDict()
        self._numbers = itertools.count(1)
        self._by_request: dict[RequestId, _SharedSubscription] = {}
        self._by_number: dict[str, _SharedSubscription] = {}
        self._subscription: Subscription | None = None

    @property
    def streams(self) -> int:
        """The number of streams with a subscription."""
        return len(self._by_request)

    async def join(self, request: RequestId, deliver: Deliver) -> InboxSubscription:
        assert request not in self._by_request
        self._abandoned.pop(request, None)
        member = _SharedSubscription(self, request, str(next(self._numbers)), deliver)
        self._by_request[request] = self._by_number[member.number] = member
        if self._subscription is None:
            self._subscription = await self._bus.subscribe(f"{self._prefix}.>", self._on_message)
        return member

    def reply(self, number: str, kind: ReplyKind) -> str:
        return f"{self._prefix}.stream" if kind == "stream" else f"{self._prefix}.{number}.{kind}"

    def remove(self, member: "_SharedSubscription", cancel: Cancel | None) -> None:
        self._by_request.pop(member.request, None)
        self._by_number.pop(member.number, None)
        if cancel is not None:
            self._abandoned[member.request] = _Abandoned(cancel, self._clock())
            if len(self._abandoned) > _MAX_ABANDONED:
                self._abandoned.popitem(last=False)

    async def _on_message(self, message: IncomingMessage) -> None:
        received = _read(message)
        if received is None:
            return
        number = message.subject.removeprefix(f"{self._prefix}.").rpartition(".")[0]
        if number:
            if (member := self._by_number.get(number)) is not None:
                await member.deliver(received)
        elif isinstance(received.content, list):
            await self._distribute(received.content, received.size_bytes)
        else:  # a 503 does not name its request; streams that had a message ignore it
            for member in list(self._by_request.values()):
                await member.deliver(received)

    async def _distribute(self, messages: list[StreamMessage], size_bytes: int) -> None:
        share = size_bytes // max(1, len(messages))
        by_request: dict[RequestId | None, list[StreamMessage]] = {}
        for message in messages:
            by_request.setdefault(message.request_id, []).append(message)
        for request, mine in by_request.items():
            if request is None:
                continue
            if (member := self._by_request.get(request)) is not None:
                await member.deliver(StreamDelivery(mine, share * len(mine)))
            elif request in self._abandoned:
                await self._cancel_again(request, mine)

    async def _cancel_again(self, request: RequestId, messages: list[StreamMessage]) -> None:
        """A request of which nobody reads the stream still has a worker."""
        abandoned = self._abandoned[request]
        if isinstance(messages[-1], DoneMessage | FailedMessage):
            del self._abandoned[request]
        elif self._clock() - abandoned.cancelled_at >= _CANCEL_AGAIN_S:
            abandoned.cancelled_at = self._clock()
            await abandoned.cancel()


@dataclass(slots=True)
class _Abandoned:
    """A request whose stream was left before its end."""

    cancel: Cancel
    cancelled_at: float


@dataclass(frozen=True, slots=True)
class _DedicatedSubscription:
    prefix: str
    subscription: Subscription

    def reply(self, kind: ReplyKind) -> str:
        return f"{self.prefix}.{kind}"

    async def leave(self, cancel: Cancel | None) -> None:
        await self.subscription.unsubscribe()


@dataclass(frozen=True, slots=True, eq=False)
class _SharedSubscription:
    inbox: SharedInbox
    request: RequestId
    number: str
    deliver: Deliver

    def reply(self, kind: ReplyKind) -> str:
        return self.inbox.reply(self.number, kind)

    async def leave(self, cancel: Cancel | None) -> None:
        self.inbox.remove(self, cancel)


def _read(message: IncomingMessage) -> StreamDelivery | None:
    """Return the decoded message; None if it is invalid: the stream recovers as after a loss."""
    kind = message.subject.rpartition(".")[2]
    size_bytes = len(message.payload)
    try:
        match kind:
            case "stream" | "state" | "resent" if message.no_responders:
                return StreamDelivery(NoResponderStatus(kind), size_bytes)
            case "stream":
                return StreamDelivery(decode_stream(message.payload), size_bytes)
            case "state":
                return StreamDelivery(decode(RequestState, message.payload), size_bytes)
            case "resent":
                return StreamDelivery(_resent(message.payload), size_bytes)
            case _:
                return None
    except DecodeError as error:
        logger.debug("dropped an invalid message of a stream: %s", error.message)
        return None


def _resent(payload: bytes) -> ResendState | list[StreamMessage]:
    """Return the worker's reply, or the messages that follow it."""
    try:
        return decode(ResendState, payload)
    except DecodeError:
        return decode_stream(payload)
