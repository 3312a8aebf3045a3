"""Leader election among controllers: at most one leads at any time, in a term that only grows.

The leader renews its lease record in JetStream, each time as a compare-and-set on the last sequence
number: a write by another controller in between is a takeover. A leader leads until that happens;
an unavailable JetStream does not end its term. Standbys probe the leader, and overwrite its record
when the leader is gone.

Reports end no term and begin none, because anybody may lie: a higher term that is heard only makes
the leader look at the record sooner. Without the record the controllers are asked.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Sequence

from controller.fleet.link_monitor import LinkMonitor
from controller.fleet.registry import NodeRegistry
from controller.leader.controller_queries import ControllerQueries
from controller.leader.leader_probe import LeaderProbe
from controller.leader.lease import LeaseBackend, LeaseReader
from controller.leader.terms import PLAUSIBLE_TERM, next_term, term_of_most
from shared.bus.lease_store import LeaseEntry
from shared.change_notifier import ChangeNotifier
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError, NoJetStream, WriteConflict
from shared.ids import BootId, ControllerId
from shared.messages.controller_report import ControllerReport, LeaseRecord

logger = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals within the time to live of a record."""
_STABLE_S = 1.0
_RELEASE_S = 1.0
_CHECK_AGAIN_S = 1.0
"""Reports make the leader check that often at most."""
_DISCOVERY_S = 2.0
"""Without JetStream: within this time every other controller has sent a heartbeat."""


class LeaderElection:
    """The part of one controller in the election.

    Attributes:
        leads: check it right before each action that only the leader may take.
        was_released: the last leader left while this controller stood by, and so handed its
            requests over.
        term: the own term while it leads, else the last leader's, as its record said.
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
        self._doubted = False  # a report says that another controller leads
        self._checked_at = -math.inf
        self._other_boots: dict[ControllerId, BootId] = {}
        self._renewed_stalls = -1  # stalls of the link until the last renewal
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._withdrawn = False
        self._started_at = time.monotonic()
        self._reader = LeaseReader()
        self._probe = LeaderProbe(peers)
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
        """Whether every other controller reports that it does not lead, and knows no later term.
        For use while JetStream does not answer. A controller that takes over after its report is
        recognised by the higher term of its orders. A controller that is gone or was started since
        this one certainly led may have led meanwhile: then this is false.

        Raises:
            BusError: the controllers cannot be asked.
        """
        reports = {report.id: report for report in await self._peers.query_all()}
        reports.pop(self._controller, None)
        boots = {id: report.boot_id for id, report in reports.items()}
        none_led = not any(report.leader or report.term > self.term for report in reports.values())
        return self.leads and none_led and boots == self._other_boots

    def on_term(self, term: int) -> None:
        """Handle the term that a worker reported."""
        if term > self.term:
            self._doubt()

    def on_controller(self, report: ControllerReport) -> None:
        """Handle the report of another controller."""
        if report.term > self.term or (report.leader and report.term == self.term):
            self._doubt()
        if self.leads and not self._link.stalled and self._link.stalls == self._renewed_stalls:
            self._note_others()

    def on_refused(self) -> None:
        """Handle a worker that rejects orders of this term, because another leader claimed it."""
        self._doubt()

    def _doubt(self) -> None:
        """Check soon whether this controller still leads: once for all that is said until then."""
        if not self.leads or self._doubted:
            return
        self._doubted = True
        delay_s = self._checked_at + _CHECK_AGAIN_S - time.monotonic()
        asyncio.get_running_loop().call_later(max(0.0, delay_s), self._wake.set)

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
                        await self._write(self.term, after=self._sequence, released=True)

    async def _on_written(self, value: bytes) -> None:
        with contextlib.suppress(DecodeError):
            if decode(LeaseRecord, value).released and not self.leads:
                self._wake.set()

    # Leading.

    async def _renew(self) -> float:
        doubted, self._doubted = self._doubted, False
        self._checked_at = time.monotonic()
        try:
            await self._renew_record()
            self._set_problem(None)
            if self.leads:
                await self._follow_most_workers()
        except NoJetStream:
            self._set_problem(_ALONE)
            if doubted and await self._has_yielded():
                return self._renew_s
            if (later := self._term_of_most()) is not None:
                self._begin(later)
        except WriteConflict:  # perhaps with an own earlier write, whose answer was lost
            self._doubted = doubted
            return 0.0
        except (BusError, TimeoutError) as error:
            self._set_problem(_describe(error))
            if doubted:
                await self._has_yielded()
            return self._renew_s / 4
        return self._renew_s

    async def _follow_most_workers(self) -> None:
        """Begin a later term if most workers refuse this one: the record that named the leader who
        claimed them is lost.

        Raises:
            BusError, TimeoutError: JetStream did not store the record.
        """
        if (later := self._term_of_most()) is not None:
            async with asyncio.timeout(self._renew_s):
                await self._write(later, after=self._sequence)
            self._begin(later)

    def _term_of_most(self) -> int | None:
        registry = self._registry
        return term_of_most(self.term, registry.refused_terms, len(registry.workers))

    async def _has_yielded(self) -> bool:
        """Stop leading if another controller answers that it leads, in a higher term, or in this
        one under an earlier name. For use while JetStream cannot say who leads."""
        try:
            reports = await self._peers.query_all()
        except BusError:
            return False
        own = -self.term, self._controller
        for report in reports:
            if report.leader and (-report.term, report.id) < own:
                self._lose(f"controller {report.id} leads, in term {report.term}")
                return True
        return False

    async def _renew_record(self) -> None:
        """Renew the record, or write it again if JetStream has lost it. The record is read first:
        after a loss, sequences start again, and the last known one may be that of another
        controller's record.

        Raises:
            BusError, TimeoutError: JetStream did not renew the record.
        """
        async with asyncio.timeout(self._renew_s):
            stored = await self._store.read(timeout_s=self._renew_s)
            record = self._reader.record(stored)
            if record is None and self._sequence and await self._has_yielded():
                return
            if record is not None and (record.controller, record.boot_id) != self._identity:
                self._lose(f"controller {record.controller} leads, in term {record.term}")
                return
            await self._write(self.term, after=stored.sequence)

    async def _write(self, term: int, *, after: int, released: bool = False) -> None:
        record = LeaseRecord(
            controller=self._controller, boot_id=self._boot_id, term=term, released=released
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
        try:
            async with asyncio.timeout(self._renew_s):
                stored = await self._store.read(timeout_s=self._renew_s)
        except NoJetStream:
            await self._lead_alone()
            return self._probe_interval_s
        except (BusError, TimeoutError) as error:
            self._set_problem(_describe(error))
            return self._probe_interval_s
        self._set_problem(None)
        record = self._reader.record(stored)
        self._observe_term(record.term if record is not None else 0)
        known: Sequence[int] = ()
        if record is None:
            self._set_leader_missing(True)
            others = await self._other_controllers()
            is_free = others is not None and not any(other.leader for other in others)
            known = [other.term for other in others or ()]
            self._set_leader_missing(is_free)
        elif record.released or record.controller == self._controller:
            is_free = True
        else:
            self._stood_by_term = record.term
            is_free = self._takes_over and await self._is_gone(record)
        if not is_free:
            return self._probe_interval_s
        await self._take_over(stored, record, known)
        return self._probe_interval_s

    async def _other_controllers(self) -> list[ControllerReport] | None:
        """Ask the other controllers where the record is lost: one that leads will write it again,
        and the next term must be above those that they know. None if they cannot be asked."""
        try:
            reports = await self._peers.query_all()
        except BusError as error:
            logger.warning("cannot query the other controllers: %s", error.message)
            return None
        return [report for report in reports if report.id != self._controller]

    async def _is_gone(self, record: LeaseRecord) -> bool:
        """Whether to take over from the leader; only while the own connection is stable."""
        is_gone = await self._probe.is_gone(record)
        self._set_leader_missing(self._probe.missing)
        return is_gone and self._link.stable_s >= _STABLE_S

    async def _take_over(
        self, stored: LeaseEntry, record: LeaseRecord | None, known: Sequence[int]
    ) -> None:
        """
        Args:
            known: without a record, the terms that the other controllers know.
        """
        if self._withdrawn or self._link.stalled:  # the stored record may have changed since
            return
        term = next_term(record.term if record is not None else None, [self.term, *known])
        try:
            async with asyncio.timeout(self._renew_s):
                await self._write(term, after=stored.sequence)
        except (BusError, TimeoutError) as error:  # including a write conflict
            logger.debug("controller %s does not lead: %s", self._controller, _describe(error))
            return
        stood_by = record is not None and record.term == self._stood_by_term
        self._begin(term, was_released=record is not None and record.released and stood_by)

    async def _lead_alone(self) -> None:
        """Without JetStream no takeover is possible: the first controller by name leads."""
        self._set_problem(_ALONE)
        others = [other for other in self._registry.controllers if other.id != self._controller]
        if time.monotonic() - self._started_at < _DISCOVERY_S or any(
            other.leader for other in others
        ):
            return
        if all(self._controller < other.id for other in others):
            asked = await self._other_controllers() or ()
            if not self._withdrawn and not any(other.leader for other in asked):
                self._begin(next_term(None, [self.term, *(other.term for other in asked)]))

    def _begin(self, term: int, *, was_released: bool = False) -> None:
        self.term, self.was_released = term, was_released
        self._probe.reset()
        self.leader_missing = False
        self.leads = True
        logger.info("controller %s leads, term %d", self._controller, self.term)
        self.changes.notify()

    def _lose(self, why: str) -> None:
        self.leads = False
        logger.warning("controller %s no longer leads: %s", self._controller, why)
        self.changes.notify()

    def _observe_term(self, term: int) -> None:
        if self.term < term < PLAUSIBLE_TERM:
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


def _describe(error: BusError | TimeoutError) -> str:
    return error.message if isinstance(error, BusError) else "JetStream does not answer"
