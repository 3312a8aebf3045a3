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
from dataclasses import replace

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
from shared.replay_queue import ReplayQueue
from shared.telemetry import Tracer
from worker.link.frames import BACKLOG_LIMIT_BYTES
from worker.requests.active_request import ActiveRequest
from worker.requests.attempt_spans import publish_span
from worker.requests.isolation import FailureIsolation
from worker.streams.outgoing import OutgoingBatch, OutgoingMessage
from worker.streams.probe_subjects import ProbeSubjects
from worker.streams.publish_lease import PublishLease
from worker.streams.replay import Replay

logger = logging.getLogger(__name__)

SLICE = 64
"""Messages that are sent again in one turn."""
_LIVE_IN_A_ROW = 64
"""Batches that are published before a slice of what is sent again has its turn."""
_RECONNECT_GRACE_S = 3.0
"""For this long after a reconnect a 503 (no responders) is ignored: clients reconnect, too."""


class StreamPublisher:
    """Publishes batches in the order in which they were put, and between them, in slices, what is
    sent again.

    Args:
        check_streams: awaited after the lease has expired, with the requests of the messages in the
            backlog, except those whose terminal message was published before; drops the requests
            that this worker no longer owns.
        on_missed: called with an inbox that has no subscriber.
        isolation: takes the request of a message that cannot be encoded.
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
        isolation: FailureIsolation,
        tracer: Tracer | None = None,
    ) -> None:
        self._bus = bus
        self._worker = worker
        self._boot_id = boot_id
        self._lease = lease
        self._check_streams = check_streams
        self._on_missed = on_missed
        self._isolation = isolation
        self._tracer = tracer
        self._probes = ProbeSubjects(bus.new_inbox())
        self._ignore_missed_until = 0.0
        self._backlog: deque[OutgoingBatch] = deque()
        self._replays: ReplayQueue[Replay, OutgoingMessage] = ReplayQueue()
        self._changes = ChangeNotifier()
        self._backlog_bytes = 0
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    def put(self, outgoing: OutgoingBatch | Replay) -> None:
        if isinstance(outgoing, Replay):
            self._replays.add(outgoing)
            self._changes.notify()
        elif outgoing.events or outgoing.client_messages:
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
        await self._bus.subscribe(self._probes.all, self._on_probe_answer)
        in_a_row = 0
        while True:
            await self._changes.wait_until(self._has_any)
            if self._backlog and (in_a_row < _LIVE_IN_A_ROW or not self._replays):
                in_a_row += 1
                await self._publish_next()
            else:
                in_a_row = 0
                with self._isolation.of(None, "sending again"):
                    await self._regain_lease()
                    _, messages = self._replays.take(SLICE)
                    await self._publish_messages(messages)
            self._changes.notify()
            await asyncio.sleep(0)  # publish only buffers: let the NATS client flush

    def _has_any(self) -> bool:
        return bool(self._backlog or self._replays)

    async def _publish_next(self) -> None:
        with self._isolation.of(None, "publishing"):
            await self._regain_lease()
            await self._publish(self._backlog[0])
        self._backlog_bytes -= self._backlog.popleft().cost_bytes
        if self._backlog_bytes <= BACKLOG_LIMIT_BYTES // 2:
            self._has_capacity.set()

    async def drain(self, limit_s: float) -> None:
        """Return once everything is published, or after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changes.wait_until(lambda: not self._has_any())

    async def _regain_lease(self) -> None:
        """Wait until NATS is connected and the lease is valid."""
        while True:
            await self._bus.wait_connected()
            connection = self._bus.connections
            if self._lease.is_valid(connection):
                return
            requests = {replay.request for replay in self._replays}.union(
                client_message.request
                for outgoing in self._backlog
                for client_message in outgoing.client_messages
            )
            await self._check_streams(
                {request for request in requests if not request.end_published}
            )
            if connection == self._bus.connections:
                self._lease.restore(connection)
                self._ignore_missed_until = self._lease.now() + _RECONNECT_GRACE_S

    async def _on_probe_answer(self, message: IncomingMessage) -> None:
        if message.no_responders and self._lease.now() > self._ignore_missed_until:
            if (inbox := self._probes.inbox(message.subject)) is not None:
                self._on_missed(inbox)

    async def _publish(self, outgoing: OutgoingBatch) -> None:
        by_owner: defaultdict[ControllerId, list[RequestEvent]] = defaultdict(list)
        for request, event in outgoing.events:
            by_owner[request.owner].append(event)
        for owner, events in by_owner.items():
            with self._isolation.of(None, "the events for a leader"):
                body = RequestEvents(worker=self._worker, boot_id=self._boot_id, events=events)
                await self._send(subjects.request_event(owner, self._worker), encode(body))
        live: list[OutgoingMessage] = []
        ended: list[ActiveRequest] = []
        for client_message in outgoing.client_messages:
            request = client_message.request
            if request.fenced:
                continue
            live.append(self._behind_replays(client_message) if self._replays else client_message)
            if client_message.message is request.end and not request.end_published:
                request.end_published = True
                ended.append(request)
        await self._publish_messages(live)
        if self._tracer is not None:
            for request in ended:
                self._tracer.record(publish_span(request))

    def _behind_replays(self, message: OutgoingMessage) -> OutgoingMessage:
        """Have a message follow each replay of its stream; return it for the other inboxes."""
        key = message.request.key
        inboxes = [
            inbox
            for inbox in message.inboxes
            if not self._replays.follow(key[0], (key, inbox), replace(message, inboxes=(inbox,)))
        ]
        return replace(message, inboxes=tuple(inboxes))

    async def _publish_messages(self, messages: Iterable[OutgoingMessage]) -> None:
        multiplexed: defaultdict[str, list[OutgoingMessage]] = defaultdict(list)
        for message in messages:
            for inbox in message.inboxes:
                if message.request.fenced:
                    continue
                if message.request.multiplex:
                    multiplexed[inbox].append(message)
                else:
                    await self._send_client_messages(inbox, [message])
        for inbox, client_messages in multiplexed.items():
            await self._send_client_messages(inbox, client_messages)

    async def _send_client_messages(
        self, inbox: str, client_messages: list[OutgoingMessage]
    ) -> None:
        """Publish one NATS message: a single client message, or several for a multiplexed inbox;
        one that is too large is split, or replaced by an error."""
        is_one = len(client_messages) == 1
        with self._isolation.of(client_messages[0].request if is_one else None, "a message"):
            payload = _encode(client_messages, [each.message for each in client_messages])
            if is_one and len(payload) > self._bus.max_payload:
                payload = _encode(client_messages, [_too_large(client_messages[0], len(payload))])
            if len(payload) <= self._bus.max_payload:
                await self._send(inbox, payload, reply=self._probe(inbox, client_messages))
                return
        if not is_one:
            for client_message in client_messages:
                await self._send_client_messages(inbox, [client_message])

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
        return self._probes.subject(inbox, now) if any(due) else ""

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
