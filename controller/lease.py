"""The leader of several controllers: at most one holds the lease at any time.

The holder writes it again each third of its time and believes in it for nine tenths of that,
counted from before it was written; JetStream keeps it for the whole, counted from after. When the
holder is silent, others find it gone; when it gives up, they are told. Where the bucket was lost
with its server, nobody knows who held it, and all wait for as long as a lease lasts.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable

from shared import subjects
from shared.bus import Bus, LeaseStore
from shared.changes import Changes
from shared.clock import awake_or_asleep
from shared.errors import BusError, Overtaken
from shared.ids import BootId, ControllerId
from shared.messages.codec import encode
from shared.messages.events import LeaseRecord

logger = logging.getLogger(__name__)

_RENEWALS = 3
"""In the time of a lease."""
_BELIEVED_SHARE = 0.9
"""Of its time: clocks differ, and who looks acts a little later."""
_GIVE_UP_S = 1.0
_AGAIN_S = 0.05
"""Between looks for what is being given up: its message can be heard before JetStream has kept it,
for which the giver waits up to `_GIVE_UP_S`."""


class Lease:
    """One controller's hold on the lease. Look at `holds` right before each thing that only the
    leader may do, and give `term` to whoever can refuse an older one.

    Attributes:
        term: the sequence at which it was last acquired; grows from holder to holder.
        problem: why it cannot be acquired, however long one waits; None where nothing is wrong.
    """

    def __init__(
        self,
        bus: Bus,
        controller: ControllerId,
        boot_id: BootId,
        ttl_s: int,
        clock: Callable[[], float] = awake_or_asleep,
    ) -> None:
        self._store = LeaseStore(bus, subjects.LEADER_BUCKET, subjects.LEADER_KEY)
        self._record = encode(LeaseRecord(controller=controller, boot_id=boot_id))
        self._controller = controller
        self._ttl_s = ttl_s
        self._interval_s = ttl_s / _RENEWALS
        self._clock = clock
        self._held = False
        self._until = 0.0
        self._sequence = 0
        self._leaving = False
        self._given_up_at = -math.inf  # by another, as was heard
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._changes = Changes()
        self.term = 0
        self.problem: str | None = None

    @property
    def holds(self) -> bool:
        return self._held and not self._leaving and self._clock() < self._until

    async def wait_until(self, held: bool) -> None:
        """Return once it is held, or once it is not."""
        await self._changes.wait_until(lambda: self.holds == held)

    async def run(self) -> None:
        """Acquire it whenever it is free and keep it, until cancelled or given up."""
        hearing = await self._store.on_cleared(self._on_cleared)
        try:
            while not self._leaving:
                async with self._turn:
                    wait_s = await self._take_turn()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            self._lose("nobody renews it here any more")
            await hearing.unsubscribe()

    async def give_up(self) -> None:
        """Let another take over at once, and do not take it again. What only the leader may do
        must have ended. Where JetStream does not answer within a second the lease ends by itself.
        """
        self._leaving = True
        self._wake.set()
        held = self._held
        self._lose("given up")
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(_GIVE_UP_S), self._turn:  # what is under way comes first
                if held or self._held:
                    self._held = False
                    await self._store.clear(after=self._sequence, timeout_s=_GIVE_UP_S)

    async def _on_cleared(self) -> None:
        self._given_up_at = self._clock()
        self._wake.set()

    async def _take_turn(self) -> float:
        """Acquire or renew; returns after how many seconds to do so again."""
        left_s = self._until - self._clock()
        if self._held and left_s <= 0:
            self._lose("it was not renewed in time")
        limit_s = min(left_s, self._interval_s) if self._held else self._interval_s
        try:
            # Not only for the answer: publishing waits, too, when a buffer is full.
            async with asyncio.timeout(limit_s):
                return await (self._renew() if self._held else self._acquire())
        except Overtaken:
            return self._interval_s
        except (BusError, TimeoutError) as error:
            if self._held:
                return min(self._interval_s / 4, max(0.0, self._until - self._clock()))
            self._set_problem(
                error.message
                if isinstance(error, BusError)
                else f"JetStream did not answer within {limit_s:.2g} s"
            )
            return self._interval_s

    async def _acquire(self) -> float:
        kept = await self._store.look(timeout_s=self._interval_s)
        self._set_problem(None)
        if kept.value not in (b"", self._record):
            given_up = self._clock() - self._given_up_at < _GIVE_UP_S
            return min(_AGAIN_S, self._interval_s) if given_up else self._interval_s
        if (young_s := self._ttl_s - kept.bucket_age_s) > 0:
            return min(young_s, self._interval_s)
        self.term = await self._write(after=kept.sequence)
        if self.holds:
            logger.info("controller %s leads, term %d", self._controller, self.term)
            self._changes.notify()
        return self._interval_s

    async def _renew(self) -> float:
        try:
            await self._write(after=self._sequence)
        except Overtaken:
            # By ourselves, where only the answer to a renewal was lost.
            kept = await self._store.look(timeout_s=self._interval_s)
            if kept.value != self._record:
                self._lose("another has it, or it was lost with its server")
                return 0
            await self._write(after=kept.sequence)
        return self._interval_s

    async def _write(self, *, after: int) -> int:
        """Hold it from before this was sent; returns its sequence."""
        sent_at = self._clock()
        self._sequence = await self._store.write(
            self._record, after=after, ttl_s=self._ttl_s, timeout_s=self._interval_s
        )
        self._held = True
        self._until = sent_at + _BELIEVED_SHARE * self._ttl_s
        return self._sequence

    def _lose(self, why: str) -> None:
        if self._held:
            self._held = False
            logger.info("controller %s leads no more: %s", self._controller, why)
            self._changes.notify()

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            logger.warning("nobody leads: %s", problem)
        self.problem = problem
