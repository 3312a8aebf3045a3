"""The one way out to NATS for streams: first the owners, then the clients, in order.

A controller must never know less of a stream than its client, so that another worker can go
on from what the controller knows. Hence one task, one connection, and this order. And nothing
is written for a stream that may have gone elsewhere; see `lease`.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from shared import subjects
from shared.bus import Bus, BusMessage
from shared.changes import Changes
from shared.codec import encode
from shared.errors import BusError
from shared.ids import BootId, ControllerId, WorkerId
from shared.messages.request_events import RequestEvent, RequestEvents
from shared.messages.stream import Done, Failed, StreamError, StreamMessage, encode_multiplexed
from shared.messages.stream import encode as encode_stream
from worker.link.frames import BACKLOG_LIMIT_BYTES
from worker.requests.active_request import ActiveRequest
from worker.streams.stream_lease import StreamLease

logger = logging.getLogger(__name__)

_APPROXIMATE_MESSAGE_BYTES = 256
_FORGIVING_S = 3.0
"""So long after a new connection a 503 says nothing: clients reconnect too."""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A message of a stream, for some inboxes."""

    request: ActiveRequest
    message: StreamMessage
    inboxes: tuple[str, ...]

    @classmethod
    def to_all(cls, request: ActiveRequest, message: StreamMessage) -> "ClientMessage":
        """For everybody who listens now: who comes later is told from the start."""
        return cls(request, message, tuple(request.inboxes))


@dataclass(slots=True)
class PublishBatch:
    """What one decode step, or one other event, has to tell."""

    events: list[tuple[ControllerId, RequestEvent]] = field(default_factory=list)
    client_messages: list[ClientMessage] = field(default_factory=list)

    @property
    def cost_bytes(self) -> int:
        return _APPROXIMATE_MESSAGE_BYTES * (len(self.events) + len(self.client_messages))


class StreamPublisher:
    """Publishes `PublishBatch`s in the order they were put.

    Args:
        check_streams: awaited after the lease lapsed, with the requests of what waits to be
            sent, but those whose end was sent before; drops those, and others, that are not ours
            any more.
        on_missed: called with an inbox that nobody listens to.
    """

    def __init__(
        self,
        bus: Bus,
        worker: WorkerId,
        boot_id: BootId,
        lease: StreamLease,
        *,
        check_streams: Callable[[Iterable[ActiveRequest]], Awaitable[None]],
        on_missed: Callable[[str], None],
    ) -> None:
        self._bus = bus
        self._worker = worker
        self._boot_id = boot_id
        self._lease = lease
        self._check_streams = check_streams
        self._on_missed = on_missed
        self._probes = bus.new_inbox()
        self._forgiving_until = 0.0
        self._waiting: deque[PublishBatch] = deque()
        self._changes = Changes()
        self._backlog_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def put(self, outgoing: PublishBatch) -> None:
        if outgoing.events or outgoing.client_messages:
            self._backlog_bytes += outgoing.cost_bytes
            if self._backlog_bytes > BACKLOG_LIMIT_BYTES:
                self._room.clear()
            self._waiting.append(outgoing)
            self._changes.notify()

    async def wait_for_room(self) -> None:
        """Return once the backlog is below its limit."""
        await self._room.wait()

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._bus.subscribe(f"{self._probes}.>", self._on_probe_answer)
        while True:
            await self._changes.wait_until(lambda: bool(self._waiting))
            await self._regain_lease()
            await self._publish(self._waiting[0])
            self._backlog_bytes -= self._waiting.popleft().cost_bytes
            if self._backlog_bytes <= BACKLOG_LIMIT_BYTES // 2:
                self._room.set()
            self._changes.notify()
            await asyncio.sleep(0)  # publish only buffers: let the client flush

    async def drain(self, limit_s: float) -> None:
        """Return once everything put so far is published, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changes.wait_until(lambda: not self._waiting)

    async def _regain_lease(self) -> None:
        """Wait for the connection, and for certainty about our streams."""
        while True:
            await self._bus.wait_connected()
            connection = self._bus.connections
            if self._lease.is_valid(connection):
                return
            client_messages = [
                client_message
                for outgoing in self._waiting
                for client_message in outgoing.client_messages
            ]
            await self._check_streams(
                {each.request for each in client_messages if not each.request.told}
            )
            if connection == self._bus.connections:
                self._lease.restore(connection)
                self._forgiving_until = self._lease.now() + _FORGIVING_S

    async def _on_probe_answer(self, message: BusMessage) -> None:
        if message.no_responders and self._lease.now() > self._forgiving_until:
            self._on_missed(message.subject.removeprefix(f"{self._probes}."))

    async def _publish(self, outgoing: PublishBatch) -> None:
        by_owner: defaultdict[ControllerId, list[RequestEvent]] = defaultdict(list)
        for owner, event in outgoing.events:
            by_owner[owner].append(event)
        for owner, events in by_owner.items():
            body = RequestEvents(worker=self._worker, boot_id=self._boot_id, events=events)
            await self._send(subjects.request_event(owner), encode(body))
        multiplexed: defaultdict[str, list[ClientMessage]] = defaultdict(list)
        for client_message in outgoing.client_messages:
            if client_message.request.fenced:
                continue
            client_message.request.told |= client_message.message is client_message.request.end
            for inbox in client_message.inboxes:
                if client_message.request.multiplex:
                    multiplexed[inbox].append(client_message)
                else:
                    await self._send_client_messages(inbox, [client_message])
        for inbox, client_messages in multiplexed.items():
            await self._send_client_messages(inbox, client_messages)

    async def _send_client_messages(self, inbox: str, client_messages: list[ClientMessage]) -> None:
        """One message: of a single letter, or of several to a multiplexed inbox."""
        payload = _encode(
            client_messages, [client_message.message for client_message in client_messages]
        )
        if len(payload) > self._bus.max_payload:
            if len(client_messages) > 1:
                for client_message in client_messages:
                    await self._send_client_messages(inbox, [client_message])
                return
            payload = _encode(client_messages, [_too_large(client_messages[0], len(payload))])
        await self._send(inbox, payload, reply=self._probe(inbox, client_messages))

    def _probe(self, inbox: str, client_messages: list[ClientMessage]) -> str:
        """A reply subject that tells whether somebody listens, when it is time for that."""
        now = self._lease.now()
        due = [
            client_message.request.inboxes.should_probe(inbox, now)
            for client_message in client_messages
            if client_message.request.streams
            and not isinstance(client_message.message, Done | Failed)
        ]
        return f"{self._probes}.{inbox}" if any(due) else ""

    async def _send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        try:
            await self._bus.publish(subject, payload, reply=reply)
        except BusError as error:
            # The message is lost; indexes reveal the gap and clients ask again.
            logger.warning("a message could not be published: %s", error.message)


def _encode(client_messages: list[ClientMessage], messages: list[StreamMessage]) -> bytes:
    if client_messages[0].request.multiplex:
        return encode_multiplexed(messages)
    (message,) = messages
    return encode_stream(message)


def _too_large(client_message: ClientMessage, size: int) -> Failed:
    """What a client gets instead of an answer that fits into no message."""
    message = f"the answer has {size} bytes, more than one message may have"
    return client_message.request.fail(StreamError.of("answer_too_large", message))
