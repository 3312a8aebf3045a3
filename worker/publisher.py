"""The one way out to NATS for streams: first the owners, then the clients, in order.

A controller must never know less of a stream than its client, so that another worker can go
on from what the controller knows. Hence one task, one connection, and this order.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from shared import subjects
from shared.bus import Bus
from shared.errors import BusError
from shared.ids import BootId, ControllerId, WorkerId
from shared.messages.codec import encode
from shared.messages.events import RequestEvent, RequestEvents
from shared.messages.stream import StreamMessage, encode_multiplexed
from shared.messages.stream import encode as encode_stream
from worker.active_request import ActiveRequest
from worker.link.frames import BACKLOG_LIMIT_BYTES

logger = logging.getLogger(__name__)

_APPROXIMATE_MESSAGE_BYTES = 256


@dataclass(slots=True)
class Outgoing:
    """What one decode step, or one other event, has to tell."""

    events: list[tuple[ControllerId, RequestEvent]] = field(default_factory=list)
    messages: list[tuple[ActiveRequest, StreamMessage]] = field(default_factory=list)

    @property
    def cost_bytes(self) -> int:
        return _APPROXIMATE_MESSAGE_BYTES * (len(self.events) + len(self.messages))


class Publisher:
    """Publishes `Outgoing`s in the order they were put."""

    def __init__(self, bus: Bus, worker: WorkerId, boot_id: BootId) -> None:
        self._bus = bus
        self._worker = worker
        self._boot_id = boot_id
        self._queue: asyncio.Queue[Outgoing] = asyncio.Queue()
        self._backlog_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def put(self, outgoing: Outgoing) -> None:
        if outgoing.events or outgoing.messages:
            self._backlog_bytes += outgoing.cost_bytes
            if self._backlog_bytes > BACKLOG_LIMIT_BYTES:
                self._room.clear()
            self._queue.put_nowait(outgoing)

    async def wait_for_room(self) -> None:
        """Return once the backlog is below its limit."""
        await self._room.wait()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            outgoing = await self._queue.get()
            try:
                await self._publish(outgoing)
            except BusError as error:
                # The messages are lost; indexes reveal the gap and clients ask again.
                logger.warning("a step's messages could not be published: %s", error.message)
            finally:
                self._backlog_bytes -= outgoing.cost_bytes
                if self._backlog_bytes <= BACKLOG_LIMIT_BYTES // 2:
                    self._room.set()
                self._queue.task_done()
            await asyncio.sleep(0)  # publish only buffers: let the client flush

    async def drain(self) -> None:
        """Return once everything put so far is published."""
        await self._queue.join()

    async def _publish(self, outgoing: Outgoing) -> None:
        by_owner: defaultdict[ControllerId, list[RequestEvent]] = defaultdict(list)
        for owner, event in outgoing.events:
            by_owner[owner].append(event)
        for owner, events in by_owner.items():
            body = RequestEvents(worker=self._worker, boot_id=self._boot_id, events=events)
            await self._bus.publish(subjects.request_event(owner), encode(body))
        for reply, payload in _payloads(outgoing.messages):
            await self._bus.publish(reply, payload)


def _payloads(
    messages: Iterable[tuple[ActiveRequest, StreamMessage]],
) -> Iterable[tuple[str, bytes]]:
    """Inbox and bytes of each message; those of one multiplexed inbox as one."""
    multiplexed: defaultdict[str, list[StreamMessage]] = defaultdict(list)
    for request, message in messages:
        reply = request.dispatch.reply
        if request.dispatch.request.multiplex:
            multiplexed[reply].append(message)
        else:
            yield reply, encode_stream(message)
    for reply, together in multiplexed.items():
        yield reply, encode_multiplexed(together)
