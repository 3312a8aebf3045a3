"""Publishes streams to NATS: first events for the leader, then messages for clients, in order.

The leader must never know less of a stream than the stream's client, so that another worker can
continue from what the leader knows. Hence one task, one connection, and this order. Nothing is
published for a stream that another worker may own by now; see `stream_lease`.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.change_notifier import ChangeNotifier
from shared.codec import encode
from shared.errors import BusError
from shared.ids import BootId, ControllerId, WorkerId
from shared.messages.request_events import RequestEvent, RequestEvents
from shared.messages.stream import (
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    StreamMessage,
    encode_multiplexed,
)
from shared.messages.stream import encode as encode_stream
from shared.telemetry import Tracer
from worker.link.frames import BACKLOG_LIMIT_BYTES
from worker.requests.active_request import ActiveRequest
from worker.requests.attempt_spans import publish_span
from worker.streams.publish_lease import PublishLease

logger = logging.getLogger(__name__)

_APPROXIMATE_MESSAGE_BYTES = 256
_RECONNECT_GRACE_S = 3.0
"""For this long after a reconnect a 503 (no responders) is ignored: clients reconnect, too."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message of a stream, and the inboxes that get it."""

    request: ActiveRequest
    message: StreamMessage
    inboxes: tuple[str, ...]

    @classmethod
    def to_all(cls, request: ActiveRequest, message: StreamMessage) -> "OutgoingMessage":
        """Address the inboxes that are attached now; one that is attached later gets the whole
        stream then."""
        return cls(request, message, tuple(request.inboxes))


@dataclass(slots=True)
class OutgoingBatch:
    """What one decode step, or another event, publishes."""

    events: list[tuple[ControllerId, RequestEvent]] = field(default_factory=list)
    client_messages: list[OutgoingMessage] = field(default_factory=list)

    @property
    def cost_bytes(self) -> int:
        return _APPROXIMATE_MESSAGE_BYTES * (len(self.events) + len(self.client_messages))


class StreamPublisher:
    """Publishes batches in the order in which they were put.

    Args:
        check_streams: awaited after the lease has expired, with the requests of the messages in the
            backlog, except those whose terminal message was published before; drops the requests
            that this worker no longer owns.
        on_missed: called with an inbox that has no subscriber.
        tracer: None if requests are not traced.
    """

    def __init__(
        self,
        bus: Bus,
        worker: WorkerId,
        boot_id: BootId,
        lease: PublishLease,
        *,
        check_streams: Callable[[Iterable[ActiveRequest]], Awaitable[None]],
        on_missed: Callable[[str], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._bus = bus
        self._worker = worker
        self._boot_id = boot_id
        self._lease = lease
        self._check_streams = check_streams
        self._on_missed = on_missed
        self._tracer = tracer
        self._probes = bus.new_inbox()
        self._ignore_missed_until = 0.0
        self._backlog: deque[OutgoingBatch] = deque()
        self._changes = ChangeNotifier()
        self._backlog_bytes = 0
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    def put(self, outgoing: OutgoingBatch) -> None:
        if outgoing.events or outgoing.client_messages:
            self._backlog_bytes += outgoing.cost_bytes
            if self._backlog_bytes > BACKLOG_LIMIT_BYTES:
                self._has_capacity.clear()
            self._backlog.append(outgoing)
            self._changes.notify()

    async def wait_for_capacity(self) -> None:
        """Return once the backlog is below its limit."""
        await self._has_capacity.wait()

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._bus.subscribe(f"{self._probes}.>", self._on_probe_answer)
        while True:
            await self._changes.wait_until(lambda: bool(self._backlog))
            await self._regain_lease()
            await self._publish(self._backlog[0])
            self._backlog_bytes -= self._backlog.popleft().cost_bytes
            if self._backlog_bytes <= BACKLOG_LIMIT_BYTES // 2:
                self._has_capacity.set()
            self._changes.notify()
            await asyncio.sleep(0)  # publish only buffers: let the NATS client flush

    async def drain(self, limit_s: float) -> None:
        """Return once the backlog is published, or after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changes.wait_until(lambda: not self._backlog)

    async def _regain_lease(self) -> None:
        """Wait until NATS is connected and the lease is valid."""
        while True:
            await self._bus.wait_connected()
            connection = self._bus.connections
            if self._lease.is_valid(connection):
                return
            client_messages = [
                client_message
                for outgoing in self._backlog
                for client_message in outgoing.client_messages
            ]
            await self._check_streams(
                {each.request for each in client_messages if not each.request.end_published}
            )
            if connection == self._bus.connections:
                self._lease.restore(connection)
                self._ignore_missed_until = self._lease.now() + _RECONNECT_GRACE_S

    async def _on_probe_answer(self, message: IncomingMessage) -> None:
        if message.no_responders and self._lease.now() > self._ignore_missed_until:
            self._on_missed(message.subject.removeprefix(f"{self._probes}."))

    async def _publish(self, outgoing: OutgoingBatch) -> None:
        by_owner: defaultdict[ControllerId, list[RequestEvent]] = defaultdict(list)
        for owner, event in outgoing.events:
            by_owner[owner].append(event)
        for owner, events in by_owner.items():
            body = RequestEvents(worker=self._worker, boot_id=self._boot_id, events=events)
            await self._send(subjects.request_event(owner), encode(body))
        ended: list[ActiveRequest] = []
        multiplexed: defaultdict[str, list[OutgoingMessage]] = defaultdict(list)
        for client_message in outgoing.client_messages:
            if client_message.request.fenced:
                continue
            request = client_message.request
            if client_message.message is request.end and not request.end_published:
                request.end_published = True
                if self._tracer is not None:
                    ended.append(request)
            for inbox in client_message.inboxes:
                if request.multiplex:
                    multiplexed[inbox].append(client_message)
                else:
                    await self._send_client_messages(inbox, [client_message])
        for inbox, client_messages in multiplexed.items():
            await self._send_client_messages(inbox, client_messages)
        if self._tracer is not None:
            for request in ended:
                self._tracer.record(publish_span(request))

    async def _send_client_messages(
        self, inbox: str, client_messages: list[OutgoingMessage]
    ) -> None:
        """Publish one NATS message: a single client message, or several for a multiplexed inbox;
        one that is too large is split, or replaced by an error."""
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

    def _probe(self, inbox: str, client_messages: list[OutgoingMessage]) -> str:
        """Return a reply subject on which the server reports a missing subscriber, if a probe is
        due."""
        now = self._lease.now()
        due = [
            client_message.request.inboxes.should_probe(inbox, now)
            for client_message in client_messages
            if client_message.request.streams
            and not isinstance(client_message.message, DoneMessage | FailedMessage)
        ]
        return f"{self._probes}.{inbox}" if any(due) else ""

    async def _send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        try:
            await self._bus.publish(subject, payload, reply=reply)
        except BusError as error:
            # The message is lost; clients see the gap in the indexes and ask for a resend.
            logger.warning("a message could not be published: %s", error.message)


def _encode(client_messages: list[OutgoingMessage], messages: list[StreamMessage]) -> bytes:
    if client_messages[0].request.multiplex:
        return encode_multiplexed(messages)
    (message,) = messages
    return encode_stream(message)


def _too_large(client_message: OutgoingMessage, size: int) -> FailedMessage:
    """End a request whose answer does not fit into one message."""
    message = f"the answer has {size} bytes, more than one message may have"
    return client_message.request.fail(ErrorDetails.of("answer_too_large", message))
