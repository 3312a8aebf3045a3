"""Where the answers to a stream come in: an inbox of its own, or one that many share.

A request with `multiplex` has its messages sent together with those of others to the same inbox:
one message for each worker and decode step, however many streams there are.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from shared.bus import Bus, Message, Subscription
from shared.errors import DecodeError
from shared.ids import RequestId
from shared.messages.codec import decode
from shared.messages.control import RequestState, ResendState
from shared.messages.stream import StreamMessage
from shared.messages.stream import decode as decode_stream

logger = logging.getLogger(__name__)

Where = Literal["stream", "state", "resent"]
"""What an answer belongs to: the request itself, a question for its state, one for a resend.
Each has a subject of its own, so that a 503 tells who is missing."""


@dataclass(frozen=True, slots=True)
class NobodyListens:
    """Nobody takes requests, knows about them, or is the worker that was asked to resend."""

    where: Where


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came for one stream."""

    what: list[StreamMessage] | RequestState | ResendState | NobodyListens
    size_bytes: int


Put = Callable[[Arrival], Awaitable[None]]


class Seat(Protocol):
    """What a stream has of an inbox while it is listened to."""

    def reply(self, where: Where) -> str:
        """The subject that answers shall be sent to."""

    async def leave(self) -> None:
        """Hear no more."""


class Inbox(Protocol):
    """Takes in what comes for streams."""

    multiplex: bool

    async def join(self, request: RequestId, put: Put) -> Seat:
        """Hand everything that comes for a request to `put`, until the seat is left.

        Raises:
            BusError: the connection is closed.
        """


class OwnInbox:
    """Each stream subscribes for itself."""

    multiplex = False

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def join(self, request: RequestId, put: Put) -> Seat:
        async def on_message(message: Message) -> None:
            if (arrival := _read(message)) is not None:
                await put(arrival)

        prefix = self._bus.new_inbox()
        return _OwnSeat(prefix, await self._bus.subscribe(f"{prefix}.*", on_message))


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
        self._by_request: dict[RequestId, _SharedSeat] = {}
        self._by_number: dict[str, _SharedSeat] = {}
        self._subscription: Subscription | None = None

    @property
    def streams(self) -> int:
        """How many listen now."""
        return len(self._by_request)

    async def join(self, request: RequestId, put: Put) -> Seat:
        assert request not in self._by_request
        seat = _SharedSeat(self, request, str(next(self._numbers)), put)
        self._by_request[request] = self._by_number[seat.number] = seat
        if self._subscription is None:
            self._subscription = await self._bus.subscribe(f"{self._prefix}.>", self._on_message)
        return seat

    def reply(self, number: str, where: Where) -> str:
        return f"{self._prefix}.stream" if where == "stream" else f"{self._prefix}.{number}.{where}"

    def forget(self, seat: "_SharedSeat") -> None:
        self._by_request.pop(seat.request, None)
        self._by_number.pop(seat.number, None)

    async def _on_message(self, message: Message) -> None:
        arrival = _read(message)
        if arrival is None:
            return
        number = message.subject.removeprefix(f"{self._prefix}.").rpartition(".")[0]
        if number:
            if (seat := self._by_number.get(number)) is not None:
                await seat.put(arrival)
        elif isinstance(arrival.what, list):
            await self._hand_out(arrival.what, arrival.size_bytes)
        else:  # whose request found nobody is not said; who was heard of does not mind
            for seat in list(self._by_request.values()):
                await seat.put(arrival)

    async def _hand_out(self, messages: list[StreamMessage], size_bytes: int) -> None:
        share = size_bytes // max(1, len(messages))
        by_request: dict[RequestId | None, list[StreamMessage]] = {}
        for message in messages:
            by_request.setdefault(message.request_id, []).append(message)
        for request, mine in by_request.items():
            if request is not None and (seat := self._by_request.get(request)) is not None:
                await seat.put(Arrival(mine, share * len(mine)))


@dataclass(frozen=True, slots=True)
class _OwnSeat:
    prefix: str
    subscription: Subscription

    def reply(self, where: Where) -> str:
        return f"{self.prefix}.{where}"

    async def leave(self) -> None:
        await self.subscription.unsubscribe()


@dataclass(frozen=True, slots=True, eq=False)
class _SharedSeat:
    inbox: SharedInbox
    request: RequestId
    number: str
    put: Put

    def reply(self, where: Where) -> str:
        return self.inbox.reply(self.number, where)

    async def leave(self) -> None:
        self.inbox.forget(self)


def _read(message: Message) -> Arrival | None:
    """What a message says; None where it is not of this cluster: silence has its own rules."""
    where = message.subject.rpartition(".")[2]
    size_bytes = len(message.payload)
    try:
        match where:
            case "stream" | "state" | "resent" if message.no_responders:
                return Arrival(NobodyListens(where), size_bytes)
            case "stream":
                return Arrival(decode_stream(message.payload), size_bytes)
            case "state":
                return Arrival(decode(RequestState, message.payload), size_bytes)
            case "resent":
                return Arrival(_resent(message.payload), size_bytes)
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
