"""Leader election among controllers: at most one leads at any time, in a term that only grows.

The leader renews its lease record in JetStream, each time as a compare-and-set on the last sequence
number: a write by another controller in between is a takeover. A leader leads until that happens,
or until it learns of a higher term; an unavailable JetStream does not end its term. Standbys probe
the leader, and overwrite its record when the leader is gone.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from controller.fleet.link_monitor import LinkMonitor
from controller.fleet.registry import NodeRegistry
from controller.leader.controller_queries import ControllerQueries
from shared.bus import Subscription
from shared.bus.lease_store import LeaseEntry
from shared.change_notifier import ChangeNotifier
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError, NoJetStream, WriteConflict
from shared.ids import BootId, ControllerId
from shared.messages.controller_report import ControllerReport, LeaseRecord

logger = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals within the time to live of a record."""
_ABSENT_S = 0.5
_SILENT_S = 3.0
_STABLE_S = 1.0
_RELEASE_S = 1.0
_DISCOVERY_S = 2.0
"""Without JetStream: within this time every other controller has sent a heartbeat."""


class LeaseBackend(Protocol):
    """Stores the lease record: `shared.bus.LeaseStore`."""

    async def read(self, *, timeout_s: float) -> LeaseEntry: ...

    async def write(self, value: bytes, *, after: int, ttl_s: int, timeout_s: float) -> int: ...

    async def on_written(self, handler: Callable[[bytes], Awaitable[None]]) -> Subscription: ...


class LeaderElection:
    """The part of one controller in the election.

    Attributes:
        leads: check it right before each action that only the leader may take.
        was_released: the last leader left while this controller stood by, and so handed its
            requests over.
        term: the own term while it leads, else the last leader's.
        leader_missing: there is no leader, or the leader did not answer the last probe.
        problem: why no controller leads, or none could take over; None if all is well.
        changes: notified when this controller leads, no longer leads, or another term begins.
    """

    def __init__(
        self,
        store: LeaseBackend,
        controller: ControllerId,
        boot_id: BootId,
        registry: NodeRegistry,
        link: LinkMonitor,
        peers: ControllerQueries,
        *,
        ttl_s: int,
        probe_interval_s: float,
        takes_over: bool = True,
    ) -> None:
        """
        Args:
            takes_over: whether to take over from a leader that does not answer before its record
                expires.
        """
        self._store = store
        self._controller = controller
        self._boot_id = boot_id
        self._registry = registry
        self._link = link
        self._peers = peers
        self._ttl_s = ttl_s
        self._renew_s = ttl_s / _RENEWALS
        self._probe_interval_s = probe_interval_s
        self._takes_over = takes_over
        self._sequence = 0
        self._stood_by_term = 0  # of a leader while this controller stood by
        self._other_boots: dict[ControllerId, BootId] = {}
        self._renewed_stalls = -1  # stalls of the link until the last renewal
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._withdrawn = False
        self._started_at = time.monotonic()
        self._unreachable: tuple[LeaseRecord, float] | None = None  # the record, and since when
        self._silent = False
        self.leads = False
        self.was_released = False
        self.term = 0
        self.leader_missing = False
        self.problem: str | None = None
        self.changes = ChangeNotifier()

    async def run(self) -> None:
        """Lead whenever no other controller does, until cancelled or resigned."""
        subscription = await self._store.on_written(self._on_written)
        try:
            while self.leads or not self._withdrawn:
                async with self._lock:
                    wait_s = await (self._renew() if self.leads else self._stand_by())
                timer = asyncio.get_running_loop().call_later(wait_s, self._wake.set)
                await self._wake.wait()
                timer.cancel()
                self._wake.clear()
        finally:
            await subscription.unsubscribe()

    async def confirm(self) -> bool:
        """Whether this controller still leads, checked by renewing the record.

        Raises:
            BusError, TimeoutError: JetStream did not renew the record.
        """
        async with self._lock:
            if self.leads:
                await self._renew_record()
            return self.leads

    async def others_stand_by(self) -> bool:
        """Whether every other controller reports that it does not lead. For use while JetStream
        does not answer. A controller that takes over after its report is recognised by the higher
        term of its orders. A controller that is gone or was started since this one certainly led
        may have led meanwhile: then this is false.

        Raises:
            BusError: the controllers cannot be asked.
        """
        reports = {report.id: report for report in await self._peers.query_all()}
        reports.pop(self._controller, None)
        boots = {id: report.boot_id for id, report in reports.items()}
        none_leads = not any(report.leader for report in reports.values())
        return self.leads and none_leads and boots == self._other_boots

    def on_term(self, term: int) -> None:
        """Handle a term that a worker or controller reported."""
        if self.leads and term > self.term:
            self._lose(f"another controller leads, in term {term}")

    def on_controllers(self) -> None:
        """Handle a controller's report: while one of a release without leaders runs, none leads."""
        if self.leads and self._registry.old_controllers:
            self._lose(self._old_release)
        elif self.leads and not self._link.stalled and self._link.stalls == self._renewed_stalls:
            self._note_others()

    @property
    def _old_release(self) -> str:
        names = ", ".join(self._registry.old_controllers)
        return f"no controller leads while controllers of an older release run: {names}"

    def on_refused(self) -> None:
        """Handle a worker that rejects orders of this term: another leader claimed the worker."""
        if self.leads:
            self._lose("another leader claimed a worker in this term")

    def withdraw(self) -> None:
        """Stop standing for election; a leader goes on leading."""
        self._withdrawn = True
        self._wake.set()

    async def resign(self) -> None:
        """Release the lease, so that another controller leads at once, and never lead again."""
        self.withdraw()
        async with self._lock:
            led, self.leads = self.leads, False
            self.changes.notify()
            if led and self._sequence:
                with contextlib.suppress(BusError, TimeoutError):
                    async with asyncio.timeout(_RELEASE_S):
                        await self._write(after=self._sequence, released=True)

    async def _on_written(self, value: bytes) -> None:
        with contextlib.suppress(DecodeError):
            if decode(LeaseRecord, value).released and not self.leads:
                self._wake.set()

    # Leading.

    async def _renew(self) -> float:
        try:
            await self._renew_record()
            self._set_problem(None)
        except NoJetStream:
            self._set_problem(_ALONE)
        except WriteConflict:  # perhaps with an own earlier write, whose answer was lost
            return 0.0
        except (BusError, TimeoutError) as error:
            self._set_problem(_describe(error))
            return self._renew_s / 4
        return self._renew_s

    async def _renew_record(self) -> None:
        """Renew the record, or write it again if JetStream has lost it. The record is read first:
        after a loss, sequences start again, and the last known one may be that of another
        controller's record.

        Raises:
            BusError, TimeoutError: JetStream did not renew the record.
        """
        async with asyncio.timeout(self._renew_s):
            stored = await self._store.read(timeout_s=self._renew_s)
            record = _record_of(stored)
            if record is not None and (record.controller, record.boot_id) != self._identity:
                self._lose(f"controller {record.controller} leads, in term {record.term}")
                return
            await self._write(after=stored.sequence)

    async def _write(self, *, after: int, released: bool = False) -> None:
        record = LeaseRecord(
            controller=self._controller, boot_id=self._boot_id, term=self.term, released=released
        )
        self._sequence = await self._store.write(
            encode(record), after=after, ttl_s=self._ttl_s, timeout_s=self._renew_s
        )
        self._renewed_stalls = self._link.stalls
        self._note_others()

    def _note_others(self) -> None:
        """Note which controllers run while this one certainly leads."""
        self._other_boots = {
            report.id: report.boot_id
            for report in self._registry.controllers
            if report.id != self._controller
        }

    @property
    def _identity(self) -> tuple[ControllerId, BootId]:
        return self._controller, self._boot_id

    # Standing by.

    async def _stand_by(self) -> float:
        if self._withdrawn:
            return 0.0
        if self._registry.old_controllers:
            self._set_problem(self._old_release)
            return self._probe_interval_s
        try:
            async with asyncio.timeout(self._renew_s):
                stored = await self._store.read(timeout_s=self._renew_s)
        except NoJetStream:
            self._lead_alone()
            return self._probe_interval_s
        except (BusError, TimeoutError) as error:
            self._set_problem(_describe(error))
            return self._probe_interval_s
        self._set_problem(None)
        record = _record_of(stored)
        self._observe_term(record.term if record is not None else 0)
        if record is None:
            self._set_leader_missing(True)
            is_free = not await self._other_leads()
            self._set_leader_missing(is_free)
        elif record.released or record.controller == self._controller:
            is_free = True
        else:
            self._stood_by_term = record.term
            is_free = self._takes_over and await self._is_gone(record)
        if not is_free:
            return self._probe_interval_s
        await self._take_over(stored, record)
        return self._probe_interval_s

    async def _other_leads(self) -> bool:
        """Whether another controller leads whose record JetStream has lost: it will renew it."""
        try:
            reports = await self._peers.query_all()
        except BusError as error:
            logger.warning("cannot query the other controllers: %s", error.message)
            return True
        return any(report.leader and report.id != self._controller for report in reports)

    async def _is_gone(self, record: LeaseRecord) -> bool:
        """Whether to take over from the leader: its subject had no subscriber for `_ABSENT_S`, or
        it did not answer for `_SILENT_S`."""
        probed_at = time.monotonic()
        probed = await self._peers.probe(record.controller)
        if isinstance(probed, ControllerReport) and (
            probed.boot_id == record.boot_id and probed.leader
        ):
            self._unreachable = None
            self._set_leader_missing(False)
            return False
        if (
            self._unreachable is None
            or self._unreachable[0] != record
            or (self._silent and probed != "silent")
        ):
            self._unreachable = record, probed_at
        self._silent = probed == "silent"
        self._set_leader_missing(True)
        unreachable_s = time.monotonic() - self._unreachable[1]
        limit_s = _SILENT_S if self._silent else _ABSENT_S
        return unreachable_s >= limit_s and self._link.stable_s >= _STABLE_S

    async def _take_over(self, stored: LeaseEntry, record: LeaseRecord | None) -> None:
        highest = max(self._registry.highest_term, self.term)
        if self._withdrawn or self._link.stalled:  # the stored record may have changed since
            return
        self.term = max(highest, record.term if record is not None else 0) + 1
        try:
            async with asyncio.timeout(self._renew_s):
                await self._write(after=stored.sequence)
        except (BusError, TimeoutError) as error:  # including a write conflict
            self.term -= 1
            logger.debug("controller %s does not lead: %s", self._controller, _describe(error))
            return
        stood_by = record is not None and record.term == self._stood_by_term
        self.was_released = record is not None and record.released and stood_by
        self._start_leading()

    def _lead_alone(self) -> None:
        """Without JetStream no takeover is possible: the first controller by name leads."""
        self._set_problem(_ALONE)
        others = [other for other in self._registry.controllers if other.id != self._controller]
        if time.monotonic() - self._started_at < _DISCOVERY_S or any(
            other.leader for other in others
        ):
            return
        if all(self._controller < other.id for other in others):
            self.term = max(self._registry.highest_term, self.term) + 1
            self.was_released = False
            self._start_leading()

    def _start_leading(self) -> None:
        self._unreachable, self.leader_missing = None, False
        self.leads = True
        logger.info("controller %s leads, term %d", self._controller, self.term)
        self.changes.notify()

    def _lose(self, why: str) -> None:
        self.leads = False
        logger.warning("controller %s no longer leads: %s", self._controller, why)
        self.changes.notify()

    def _observe_term(self, term: int) -> None:
        if term > self.term:
            self.term = term
            self.changes.notify()

    def _set_leader_missing(self, missing: bool) -> None:
        if missing != self.leader_missing:
            self.leader_missing = missing
            self.changes.notify()

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem


_ALONE = "the NATS server has no JetStream: no other controller can take over"


def _record_of(stored: LeaseEntry) -> LeaseRecord | None:
    """Return None if there is no leader, or the record cannot be read."""
    if not stored.value:
        return None
    try:
        return decode(LeaseRecord, stored.value)
    except DecodeError as error:
        logger.error("the leader's record cannot be read: %s", error.message)
        return None


def _describe(error: BusError | TimeoutError) -> str:
    return error.message if isinstance(error, BusError) else "JetStream does not answer"
