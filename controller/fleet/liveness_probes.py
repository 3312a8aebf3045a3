"""Finds out within a moment that a worker is gone: nobody answers where it listened.

The server says so itself: what is published for a subject without a subscriber comes back as its
503. A process that is only slow, hung or cut off beyond the server keeps its subscription: its
heartbeats stay out instead.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection

from controller.fleet.link_monitor import LinkMonitor
from shared import subjects
from shared.bus import Bus, BusMessage
from shared.errors import BusError
from shared.ids import BootId, WorkerId

_CALM_S = 1.0
"""After a restart of NATS, or of our own connection, the others are back within this time."""

_MOST_AT_ONCE = 100
"""So many are probed in an interval, in turn: 1,000 each time would take a fifth of a core."""

Boot = tuple[WorkerId, BootId]


class LivenessProbes:
    """Asks workers whether they are there.

    Args:
        everyone: all that are known.
        busy: those of them that matter now.
        on_gone: called for each that is not there; it is to be out of `everyone` then.
    """

    def __init__(
        self,
        bus: Bus,
        link: LinkMonitor,
        *,
        everyone: Callable[[], Collection[Boot]],
        busy: Callable[[], Collection[Boot]],
        on_gone: Callable[[Boot], None],
    ) -> None:
        self._bus = bus
        self._link = link
        self._everyone = everyone
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

    async def probe(self) -> None:
        """Ask those whose turn it is; call it a few times a second."""
        if not self._bus.connected:
            self._missing.clear()
            return
        with contextlib.suppress(BusError):
            await self._look()

    async def _look(self) -> None:
        asked = self._next() | self._missing.keys()
        missing = await self._ask(asked)
        if missing:  # of one alone nobody can tell whether it is NATS that began anew
            everyone = set(self._everyone())
            missing |= await self._ask(everyone - asked)
            self._judge(missing, everyone)
            missing &= set(self._everyone())
        self._missing = {boot: since for boot, since in self._missing.items() if boot in missing}

    def _next(self) -> set[Boot]:
        """Those whose turn it is."""
        if not self._turns:
            self._turns.extend(set(self._busy()) & set(self._everyone()))
        return {self._turns.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._turns)))}

    def _judge(self, missing: set[Boot], everyone: set[Boot]) -> None:
        now = time.monotonic()
        calm = self._link.calm_s >= _CALM_S
        few = 2 * len(missing & everyone) <= len(everyone)
        for boot in missing:
            since = self._missing.setdefault(boot, now)
            if (calm and few) or (not self._link.away and now - since >= _CALM_S):
                self._on_gone(boot)

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
            reply = f"{self._inbox}.{self._numbers}"
            await self._bus.publish(subjects.worker_alive(worker, boot_id), b"", reply=reply)
        try:
            await self._bus.flush(timeout_s=_CALM_S)  # its own answers come before this
            return self._absent
        finally:
            self._asked.clear()

    async def _on_answer(self, message: BusMessage) -> None:
        boot = self._asked.get(int(message.subject.rpartition(".")[2]))
        if boot is not None and message.no_responders:
            self._absent.add(boot)
