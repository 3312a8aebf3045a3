"""Finds out within a moment that a worker process is gone: nobody answers where it listened.

The server says so itself: what is published for a subject without a subscriber comes back as its
503. A worker that is only slow, hung or cut off beyond the server keeps its subscription: its
heartbeats stay out instead.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection

from controller.link_watch import LinkWatch
from controller.registry import Registry, WorkerGone
from shared import subjects
from shared.bus import Bus, Message
from shared.errors import BusError
from shared.ids import BootId, WorkerId

logger = logging.getLogger(__name__)

_CALM_S = 1.0
"""After a restart of NATS, or of our own connection, workers are back within this time."""

_MOST_AT_ONCE = 100
"""So many are probed in an interval, in turn: 1,000 each time would take a fifth of a core."""

Boot = tuple[WorkerId, BootId]


class Probing:
    """Asks the workers that have work of ours whether they are there.

    Args:
        busy: those.
        on_gone: awaited for each that is not; it is out of the registry then.
    """

    def __init__(
        self,
        bus: Bus,
        registry: Registry,
        link: LinkWatch,
        *,
        interval_s: float,
        busy: Callable[[], Collection[Boot]],
        on_gone: Callable[[WorkerGone], Awaitable[None]],
    ) -> None:
        self._bus = bus
        self._registry = registry
        self._link = link
        self._interval_s = interval_s
        self._busy = busy
        self._on_gone = on_gone
        self._inbox = bus.new_inbox()
        self._asked: dict[int, Boot] = {}
        self._absent: set[Boot] = set()
        self._numbers = 0
        self._missing: dict[Boot, float] = {}  # since when
        self._turns: deque[Boot] = deque()

    async def open(self) -> None:
        await self._bus.subscribe(f"{self._inbox}.*", self._on_answer)

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            with contextlib.suppress(BusError):
                await self._probe()

    async def _probe(self) -> None:
        if not self._bus.connected:
            self._missing.clear()
            return
        asked = self._next() | self._missing.keys()
        missing = await self._ask(asked)
        if missing:  # of one alone nobody can tell whether it is NATS that began anew
            everyone = {(view.id, view.report.boot_id) for view in self._registry.workers}
            missing |= await self._ask(everyone - asked)
            await self._judge(missing, everyone)
        still = {boot for boot in missing if self._is_known(boot)}
        self._missing = {boot: since for boot, since in self._missing.items() if boot in still}

    def _next(self) -> set[Boot]:
        """Those whose turn it is."""
        if not self._turns:
            self._turns.extend(boot for boot in self._busy() if self._is_known(boot))
        return {self._turns.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._turns)))}

    async def _judge(self, missing: set[Boot], everyone: set[Boot]) -> None:
        now = time.monotonic()
        trusted_since = self._link.trusted_since
        calm = trusted_since is not None and now - trusted_since >= _CALM_S
        few = 2 * len(missing & everyone) <= len(everyone)
        for boot in missing:
            since = self._missing.setdefault(boot, now)
            if trusted_since is None or not ((calm and few) or now - since >= _CALM_S):
                continue
            worker, boot_id = boot
            if self._registry.remove(worker, boot_id):
                await self._on_gone(WorkerGone(worker, boot_id, "nobody listens there any more"))

    async def _ask(self, boots: Collection[Boot]) -> set[Boot]:
        """Those of them that the server has no subscription of.

        Raises:
            BusError: the server does not answer.
        """
        if not boots:
            return set()
        self._absent = set()
        for worker, boot_id in boots:
            self._numbers += 1
            self._asked[self._numbers] = worker, boot_id
            subject = subjects.worker_alive(worker, boot_id)
            await self._bus.publish(subject, b"", reply=f"{self._inbox}.{self._numbers}")
        try:
            await self._bus.flush(timeout_s=_CALM_S)  # its own answers come before this
            return self._absent
        finally:
            self._asked.clear()

    async def _on_answer(self, message: Message) -> None:
        boot = self._asked.get(int(message.subject.rpartition(".")[2]))
        if boot is not None and message.no_responders:
            self._absent.add(boot)

    def _is_known(self, boot: Boot) -> bool:
        view = self._registry.worker(boot[0])
        return view is not None and view.report.boot_id == boot[1]
