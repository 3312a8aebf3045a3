"""What a worker reports to controllers on its own: its state, heartbeats, and cached prefixes."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from shared import subjects
from shared.bus import Bus
from shared.codec import encode
from shared.errors import BusError
from shared.ids import WorkerId
from shared.messages.events import EventType, KeptPrefixes, WorkerEvent
from shared.messages.worker_report import WorkerReport
from worker.requests.isolation import FailureIsolation
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.streams.publish_lease import PublishLease

logger = logging.getLogger(__name__)

_CACHED_PREFIXES_INTERVAL_S = 5.0


class Announcer:
    """
    Args:
        lease: renewed by each heartbeat that is known to have arrived.
        interval_s: between heartbeats.
        report: returns the whole state of the worker.

    Attributes:
        announced: controllers know this worker; before that no heartbeats are sent.
    """

    def __init__(
        self,
        bus: Bus,
        worker: WorkerId,
        lease: PublishLease,
        cached_prefixes: LocalPrefixIndex,
        isolation: FailureIsolation,
        *,
        interval_s: float,
        report: Callable[[], WorkerReport],
    ) -> None:
        self._bus = bus
        self._worker = worker
        self._lease = lease
        self._cached_prefixes = cached_prefixes
        self._isolation = isolation
        self._interval_s = interval_s
        self._report = report
        self.announced = False

    async def announce_state(self) -> None:
        """Publish `joined` the first time, and `state_changed` after that."""
        await self.publish_event("state_changed" if self.announced else "joined")
        self.announced = True

    async def send_heartbeats(self) -> None:
        """Send heartbeats, and renew the lease when they have arrived, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            sent_at, connection = self._lease.now(), self._bus.connections
            with self._isolation.of(None, "a heartbeat"), contextlib.suppress(BusError):
                if self.announced:
                    await self.publish_event("heartbeat")
                await self._bus.flush(timeout_s=self._interval_s)
                self._lease.renew(sent_at, connection)

    async def report_cached_prefixes(self) -> None:
        """Publish changes of the cached prefixes until cancelled."""
        while True:
            with self._isolation.of(None, "the report of cached prefixes"):
                if (changes := self._cached_prefixes.changes()) is not None:
                    await self._publish(subjects.prefix_event(self._worker), changes)
            await asyncio.sleep(_CACHED_PREFIXES_INTERVAL_S)

    async def publish_event(self, kind: EventType) -> None:
        event = WorkerEvent(type=kind, worker=self._report())
        await self._publish(subjects.worker_event(self._worker), event)

    async def _publish(self, subject: str, event: WorkerEvent | KeptPrefixes) -> None:
        try:
            await self._bus.publish(subject, encode(event))
        except BusError as error:
            logger.debug("an event was not published on %s: %s", subject, error.message)
