"""Which of several controllers leads: at most one at any time, in a term that only grows.

The leader writes its record in JetStream again and again, each time after the sequence before: who
writes in between has overtaken it. It leads until that happens, or until it hears of a higher term;
that JetStream does not answer ends nothing. Standbys ask the leader whether it is there, and
overwrite its record when it is not.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

from controller.fleet.link_monitor import LinkMonitor
from controller.fleet.registry import Registry
from shared.bus import Subscription
from shared.bus.lease_store import LeaseValue
from shared.changes import Changes
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError, NoJetStream, WriteConflict
from shared.ids import BootId, ControllerId
from shared.messages.controller_report import ControllerReport
from shared.messages.lease import LeaseRecord

logger = logging.getLogger(__name__)

_RENEWALS = 3
"""In the time to live of a record."""
_APART_S = 0.5
_SILENCE_S = 3.0
_CALM_S = 1.0
_GIVE_UP_S = 1.0
_SETTLE_S = 2.0
"""Without JetStream: so long until every other controller was heard."""

Probed = ControllerReport | Literal["absent", "silent"]
"""What a controller says of itself; or that nobody listens there, or does not answer."""


class LeaseBackend(Protocol):
    """Where the record is kept: `shared.bus.LeaseStore`."""

    async def look(self, *, timeout_s: float) -> LeaseValue: ...

    async def write(self, value: bytes, *, after: int, ttl_s: int, timeout_s: float) -> int: ...

    async def on_written(self, handler: Callable[[bytes], Awaitable[None]]) -> Subscription: ...


class LeaderElection:
    """One controller's part in it.

    Attributes:
        leads: look at it right before each thing that only the leader may do.
        term: while it leads; of the leader before while it stands by.
        doubts: the leader did not answer when it was asked last.
        problem: why nobody leads, or could follow; None where nothing is wrong.
        changes: notified when one of the first three changes.
    """

    def __init__(
        self,
        store: LeaseBackend,
        controller: ControllerId,
        boot_id: BootId,
        registry: Registry,
        link: LinkMonitor,
        probe: Callable[[ControllerId], Awaitable[Probed]],
        ask_all: Callable[[], Awaitable[Sequence[ControllerReport]]],
        *,
        ttl_s: int,
        probe_interval_s: float,
        overtakes: bool = True,
    ) -> None:
        """
        Args:
            overtakes: a leader that does not answer; else its record has to expire first.
        """
        self._store = store
        self._controller = controller
        self._boot_id = boot_id
        self._registry = registry
        self._link = link
        self._probe = probe
        self._ask_all = ask_all
        self._ttl_s = ttl_s
        self._renew_s = ttl_s / _RENEWALS
        self._probe_interval_s = probe_interval_s
        self._overtakes = overtakes
        self._sequence = 0
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._retiring = False
        self._began_at = time.monotonic()
        self._missing: tuple[LeaseRecord, float] | None = None  # since when it does not answer
        self._silent = False
        self.leads = False
        self.term = 0
        self.doubts = False
        self.problem: str | None = None
        self.changes = Changes()

    async def run(self) -> None:
        """Lead whenever nobody else does, until cancelled or given up."""
        hearing = await self._store.on_written(self._on_written)
        try:
            while self.leads or not self._retiring:
                async with self._turn:
                    wait_s = await (self._renew() if self.leads else self._stand_by())
                timer = asyncio.get_running_loop().call_later(wait_s, self._wake.set)
                await self._wake.wait()
                timer.cancel()
                self._wake.clear()
        finally:
            await hearing.unsubscribe()

    async def confirm(self) -> bool:
        """Whether it leads still, by writing the record.

        Raises:
            BusError: JetStream does not say.
        """
        async with self._turn:
            if self.leads:
                await self._write_again()
            return self.leads

    async def others_stand_by(self) -> bool:
        """Whether every other known controller says that it does not lead. To be asked where
        JetStream does not answer. A controller that takes over after its answer is recognised by
        the higher term of its orders.

        Raises:
            BusError: they cannot be asked.
        """
        reports = {report.id: report for report in await self._ask_all()}
        others = {one.id for one in self._registry.controllers} | reports.keys()
        others.discard(self._controller)
        return self.leads and all(one in reports and not reports[one].leader for one in others)

    def on_term(self, term: int) -> None:
        """A worker or controller told of a term."""
        if self.leads and term > self.term:
            self._lose(f"another one leads, in term {term}")

    def on_controllers(self) -> None:
        """A controller told of itself: beside one of a release without leaders nobody leads."""
        if self.leads and self._registry.old_controllers:
            self._lose(self._older)

    @property
    def _older(self) -> str:
        names = ", ".join(self._registry.old_controllers)
        return f"nobody leads while controllers of an older release run: {names}"

    def on_refused(self) -> None:
        """A worker takes no orders of this term: another leader had it."""
        if self.leads:
            self._lose("a worker was claimed in this term by another one")

    def retire(self) -> None:
        """Do not begin to lead any more."""
        self._retiring = True
        self._wake.set()

    async def give_up(self) -> None:
        """Let another one lead at once, and do not lead again."""
        self.retire()
        async with self._turn:
            led, self.leads = self.leads, False
            self.changes.notify()
            if led and self._sequence:
                with contextlib.suppress(BusError, TimeoutError):
                    async with asyncio.timeout(_GIVE_UP_S):
                        await self._write(after=self._sequence, released=True)

    async def _on_written(self, value: bytes) -> None:
        with contextlib.suppress(DecodeError):
            if decode(LeaseRecord, value).released and not self.leads:
                self._wake.set()

    # Leading.

    async def _renew(self) -> float:
        try:
            await self._write_again()
            self._set_problem(None)
        except NoJetStream:
            self._set_problem(_ALONE)
        except WriteConflict:  # maybe by what we wrote before, of which nobody answered
            return 0.0
        except (BusError, TimeoutError) as error:
            self._set_problem(_told(error))
            return self._renew_s / 4
        return self._renew_s

    async def _write_again(self) -> None:
        """Renew the record, also one that JetStream has lost. It is read first: sequences begin
        anew where all is lost, and one that was written before may then be another's.

        Raises:
            BusError, TimeoutError: JetStream did not do it.
        """
        async with asyncio.timeout(self._renew_s):
            kept = await self._store.look(timeout_s=self._renew_s)
            record = _record_of(kept)
            if record is not None and (record.controller, record.boot_id) != self._itself:
                self._lose(f"controller {record.controller} leads, in term {record.term}")
                return
            await self._write(after=kept.sequence)

    async def _write(self, *, after: int, released: bool = False) -> None:
        record = LeaseRecord(
            controller=self._controller, boot_id=self._boot_id, term=self.term, released=released
        )
        self._sequence = await self._store.write(
            encode(record), after=after, ttl_s=self._ttl_s, timeout_s=self._renew_s
        )

    @property
    def _itself(self) -> tuple[ControllerId, BootId]:
        return self._controller, self._boot_id

    # Standing by.

    async def _stand_by(self) -> float:
        if self._retiring:
            return 0.0
        if self._registry.old_controllers:
            self._set_problem(self._older)
            return self._probe_interval_s
        try:
            async with asyncio.timeout(self._renew_s):
                kept = await self._store.look(timeout_s=self._renew_s)
        except NoJetStream:
            self._lead_alone()
            return self._probe_interval_s
        except (BusError, TimeoutError) as error:
            self._set_problem(_told(error))
            return self._probe_interval_s
        self._set_problem(None)
        record = _record_of(kept)
        self._heard_of(record.term if record is not None else 0)
        if record is None:
            self._set_doubts(True)
            is_free = not await self._other_leads()
            self._set_doubts(is_free)
        elif record.released or record.controller == self._controller:
            is_free = True
        else:
            is_free = self._overtakes and await self._is_gone(record)
        if not is_free:
            return self._probe_interval_s
        await self._take_over(kept, record)
        return self._probe_interval_s

    async def _other_leads(self) -> bool:
        """Whether a leader is there whose record JetStream has lost: it writes it again."""
        try:
            reports = await self._ask_all()
        except BusError as error:
            logger.warning("the other controllers cannot be asked: %s", error.message)
            return True
        return any(report.leader and report.id != self._controller for report in reports)

    async def _is_gone(self, record: LeaseRecord) -> bool:
        """Whether the leader is to be overtaken: twice nobody listened there, or it was silent for
        long."""
        asked_at = time.monotonic()
        probed = await self._probe(record.controller)
        if isinstance(probed, ControllerReport) and (
            probed.boot_id == record.boot_id and probed.leader
        ):
            self._missing = None
            self._set_doubts(False)
            return False
        if (
            self._missing is None
            or self._missing[0] != record
            or (self._silent and probed != "silent")
        ):
            self._missing = record, asked_at
        self._silent = probed == "silent"
        self._set_doubts(True)
        missing_s = time.monotonic() - self._missing[1]
        limit_s = _SILENCE_S if self._silent else _APART_S
        return missing_s >= limit_s and self._link.calm_s >= _CALM_S

    async def _take_over(self, kept: LeaseValue, record: LeaseRecord | None) -> None:
        heard = max(self._registry.highest_term, self.term)
        if self._retiring or self._link.away:  # what was looked at may be old
            return
        self.term = max(heard, record.term if record is not None else 0) + 1
        try:
            async with asyncio.timeout(self._renew_s):
                await self._write(after=kept.sequence)
        except (BusError, TimeoutError) as error:  # Overtaken, too
            self.term -= 1
            logger.debug("controller %s does not lead: %s", self._controller, _told(error))
            return
        self._begin()

    def _lead_alone(self) -> None:
        """Without JetStream nobody can be overtaken: the first one by name leads."""
        self._set_problem(_ALONE)
        others = [one for one in self._registry.controllers if one.id != self._controller]
        if time.monotonic() - self._began_at < _SETTLE_S or any(one.leader for one in others):
            return
        if all(self._controller < one.id for one in others):
            self.term = max(self._registry.highest_term, self.term) + 1
            self._begin()

    def _begin(self) -> None:
        self._missing, self.doubts = None, False
        self.leads = True
        logger.info("controller %s leads, term %d", self._controller, self.term)
        self.changes.notify()

    def _lose(self, why: str) -> None:
        self.leads = False
        logger.warning("controller %s leads no more: %s", self._controller, why)
        self.changes.notify()

    def _heard_of(self, term: int) -> None:
        if term > self.term:
            self.term = term
            self.changes.notify()

    def _set_doubts(self, doubts: bool) -> None:
        if doubts != self.doubts:
            self.doubts = doubts
            self.changes.notify()

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem


_ALONE = "the NATS server has no JetStream: no other controller can take over"


def _record_of(kept: LeaseValue) -> LeaseRecord | None:
    """None where nobody leads, or what is kept cannot be read."""
    if not kept.value:
        return None
    try:
        return decode(LeaseRecord, kept.value)
    except DecodeError as error:
        logger.error("the record of the leader cannot be read: %s", error.message)
        return None


def _told(error: BusError | TimeoutError) -> str:
    return error.message if isinstance(error, BusError) else "JetStream does not answer"
