"""Where the answers to a stream come in: an inbox of its own, or one that many share.

A request with `multiplex` has its messages sent together with those of others to the same inbox:
one message for each worker and decode step, however many streams there are.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from shared.bus import Bus, BusMessage, Subscription
from shared.codec import decode
from shared.errors import DecodeError
from shared.ids import RequestId
from shared.messages.control import RequestState, ResendState
from shared.messages.stream import StreamMessage
from shared.messages.stream import decode as decode_stream

logger = logging.getLogger(__name__)

Where = Literal["stream", "state", "resent"]
"""What an answer belongs to: the request itself, a question for its state, one for a resend.
Each has a subject of its own, so that a 503 tells who is missing."""


@dataclass(frozen=True, slots=True)
class NoResponder:
    """Nobody takes requests, knows about them, or is the worker that was asked to resend."""

    where: Where


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """What came for one stream."""

    what: list[StreamMessage] | RequestState | ResendState | NoResponder
    size_bytes: int


Put = Callable[[ReceivedMessage], Awaitable[None]]


class StreamSubscription(Protocol):
    """What a stream has of an inbox while it is listened to."""

    def reply(self, where: Where) -> str:
        """The subject that answers shall be sent to."""

    async def leave(self) -> None:
        """Hear no more."""


class Inbox(Protocol):
    """Takes in what comes for streams."""

    multiplex: bool

    async def join(self, request: RequestId, put: Put) -> StreamSubscription:
        """Hand everything that comes for a request to `put`, until the seat is left.

        Raises:
            BusError: the connection is closed.
        """


class DedicatedInbox:
    """Each stream subscribes for itself."""

    multiplex = False

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def join(self, request: RequestId, put: Put) -> StreamSubscription:
        async def on_message(message: BusMessage) -> None:
            if (arrival := _read(message)) is not None:
                await put(arrival)

        prefix = self._bus.new_inbox()
        return _DedicatedSubscription(prefix, await self._bus.subscribe(f"{prefix}.*", on_message))


class SharedInbox:
    """All streams of a connection have one subscription.

    Args:
        prefix: of its subjects, and of nobody else's.
    """

    multiplex = True

    def __init__(self, bus: Bus, prefix: str) -> None:
        self._bus = bus
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._by_request: dict[RequestId, _SharedSubscription] = {}
        self._by_number: dict[str, _SharedSubscription] = {}
        self._subscription: Subscription | None = None

    @property
    def streams(self) -> int:
        """How many listen now."""
        return len(self._by_request)

    async def join(self, request: RequestId, put: Put) -> StreamSubscription:
        assert request not in self._by_request
        stream_subscription = _SharedSubscription(self, request, str(next(self._numbers)), put)
        self._by_request[request] = self._by_number[stream_subscription.number] = (
            stream_subscription
        )
        if self._subscription is None:
            self._subscription = await self._bus.subscribe(f"{self._prefix}.>", self._on_message)
        return stream_subscription

    def reply(self, number: str, where: Where) -> str:
        return f"{self._prefix}.stream" if where == "stream" else f"{self._prefix}.{number}.{where}"

    def forget(self, stream_subscription: "_SharedSubscription") -> None:
        self._by_request.pop(stream_subscription.request, None)
        self._by_number.pop(stream_subscription.number, None)

    async def _on_message(self, message: BusMessage) -> None:
        arrival = _read(message)
        if arrival is None:
            return
        number = message.subject.removeprefix(f"{self._prefix}.").rpartition(".")[0]
        if number:
            if (stream_subscription := self._by_number.get(number)) is not None:
                await stream_subscription.put(arrival)
        elif isinstance(arrival.what, list):
            await self._hand_out(arrival.what, arrival.size_bytes)
        else:  # whose request found nobody is not said; who was heard of does not mind
            for stream_subscription in list(self._by_request.values()):
                await stream_subscription.put(arrival)

    async def _hand_out(self, messages: list[StreamMessage], size_bytes: int) -> None:
        share = size_bytes // max(1, len(messages))
        by_request: dict[RequestId | None, list[StreamMessage]] = {}
        for message in messages:
            by_request.setdefault(message.request_id, []).append(message)
        for request, mine in by_request.items():
            if (
                request is not None
                and (stream_subscription := self._by_request.get(request)) is not None
            ):
                await stream_subscription.put(ReceivedMessage(mine, share * len(mine)))


@dataclass(frozen=True, slots=True)
class _DedicatedSubscription:
    prefix: str
    subscription: Subscription

    def reply(self, where: Where) -> str:
        return f"{self.prefix}.{where}"

    async def leave(self) -> None:
        await self.subscription.unsubscribe()


@dataclass(frozen=True, slots=True, eq=False)
class _SharedSubscription:
    inbox: SharedInbox
    request: RequestId
    number: str
    put: Put

    def reply(self, where: Where) -> str:
        return self.inbox.reply(self.number, where)

    async def leave(self) -> None:
        self.inbox.forget(self)


def _read(message: BusMessage) -> ReceivedMessage | None:
    """What a message says; None where it is not of this cluster: silence has its own rules."""
    where = message.subject.rpartition(".")[2]
    size_bytes = len(message.payload)
    try:
        match where:
            case "stream" | "state" | "resent" if message.no_responders:
                return ReceivedMessage(NoResponder(where), size_bytes)
            case "stream":
                return ReceivedMessage(decode_stream(message.payload), size_bytes)
            case "state":
                return ReceivedMessage(decode(RequestState, message.payload), size_bytes)
            case "resent":
                return ReceivedMessage(_resent(message.payload), size_bytes)
            case _:
                return None
    except DecodeError as error:
        logger.debug("what came for a stream could not be read: %s", error.message)
        return None


def _resent(payload: bytes) -> ResendState | list[StreamMessage]:
    """The worker's answer, or what follows it."""
    try:
        return decode(ResendState, payload)
    except DecodeError:
        return decode_stream(payload)
