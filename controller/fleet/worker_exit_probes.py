"""Detects within a moment that a worker process ended: its `alive` subject has no subscriber.

The NATS server reports it: a message with a reply subject, published where nobody subscribes, comes
back with status 503. A process that is slow, hung or cut off beyond the server keeps its
subscription; its missing heartbeats reveal it instead.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection

from controller.fleet.link_monitor import LinkMonitor
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.errors import BusError
from shared.ids import BootId, WorkerId

_RECONNECT_S = 1.0
"""After a restart of NATS, or a reconnect of this process, workers reconnect within this time."""

_MAX_PER_INTERVAL = 100
"""Workers that are probed in one interval, in turn: probing 1,000 each time would use a fifth of a
core."""

Boot = tuple[WorkerId, BootId]


class WorkerExitProbes:
    """Probes busy workers.

    Args:
        known: returns all known workers.
        busy: returns the workers to probe, those with requests.
        on_gone: called for each worker that ended; must remove it from `known`.
    """

    def __init__(
        self,
        bus: Bus,
        link: LinkMonitor,
        *,
        known: Callable[[], Collection[Boot]],
        busy: Callable[[], Collection[Boot]],
        on_gone: Callable[[Boot], None],
    ) -> None:
        self._bus = bus
        self._link = link
        self._known = known
        self._busy = busy
        self._on_gone = on_gone
        self._inbox = bus.new_inbox()
        self._pending: dict[int, Boot] = {}
        self._absent: set[Boot] = set()
        self._last_probe = 0
        self._missing_since: dict[Boot, float] = {}
        self._queue: deque[Boot] = deque()

    async def open(self) -> None:
        await self._bus.subscribe(f"{self._inbox}.*", self._on_reply)

    async def probe(self) -> None:
        """Probe the next workers; call it a few times a second."""
        if not self._bus.connected:
            self._missing_since.clear()
            return
        with contextlib.suppress(BusError):
            await self._probe_next()

    async def _probe_next(self) -> None:
        probed = self._next_batch() | self._missing_since.keys()
        missing = await self._find_absent(probed)
        if missing:  # only the state of all workers tells an ended worker from a restart of NATS
            known = set(self._known())
            missing |= await self._find_absent(known - probed)
            self._report_gone(missing, known)
            missing &= set(self._known())
        self._missing_since = {
            boot: since for boot, since in self._missing_since.items() if boot in missing
        }

    def _next_batch(self) -> set[Boot]:
        if not self._queue:
            self._queue.extend(set(self._busy()) & set(self._known()))
        return {self._queue.popleft() for _ in range(min(_MAX_PER_INTERVAL, len(self._queue)))}

    def _report_gone(self, missing: set[Boot], known: set[Boot]) -> None:
        """Report missing workers at once if they are a minority and the connection is stable, and
        otherwise once they had time to reconnect."""
        now = time.monotonic()
        is_stable = self._link.stable_s >= _RECONNECT_S
        are_few = 2 * len(missing & known) <= len(known)
        for boot in missing:
            since = self._missing_since.setdefault(boot, now)
            if (is_stable and are_few) or (not self._link.stalled and now - since >= _RECONNECT_S):
                self._on_gone(boot)

    async def _find_absent(self, boots: Collection[Boot]) -> set[Boot]:
        """Return those without a subscription at the NATS server.

        Raises:
            BusError: the server does not answer.
        """
        if not boots:
            return set()
        self._absent = set()
        for worker, boot_id in boots:
            self._last_probe += 1
            self._pending[self._last_probe] = worker, boot_id
            reply = f"{self._inbox}.{self._last_probe}"
            await self._bus.publish(subjects.worker_alive(worker, boot_id), b"", reply=reply)
        try:
            # The server sends its own 503 replies before the reply to this flush.
            await self._bus.flush(timeout_s=_RECONNECT_S)
            return self._absent
        finally:
            self._pending.clear()

    async def _on_reply(self, message: IncomingMessage) -> None:
        boot = self._pending.get(subjects.reply_number(message.subject))
        if boot is not None and message.no_responders:
            self._absent.add(boot)
