"""The members of the cluster, as this controller observes them: keeps the registry up to date by
events, heartbeats and liveness probes, and notifies the leader."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from controller.fleet.link_monitor import LinkMonitor
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import NodeRegistry, WorkerGone
from controller.fleet.worker_exit_probes import Boot, WorkerExitProbes
from controller.intake.request_handler import ClientMessageHandler
from controller.leader.election import LeaderElection
from controller.leader.leader import LeaderService
from controller.requests.events import WorkerReported
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.errors import DecodeError
from shared.ids import ControllerId
from shared.messages.events import ControllerEvent, WorkerEvent
from shared.messages.sender import decode_from
from shared.refused_messages import RefusedMessages
from shared.settings.controller import FailoverSettings

logger = logging.getLogger(__name__)

_NO_SUBSCRIBER = "its alive subject has no subscriber"


class MembershipMonitor:
    """
    Args:
        leader: returns the leader here while this controller leads, else None.
    """

    def __init__(
        self,
        failover: FailoverSettings,
        bus: Bus,
        controller: ControllerId,
        registry: NodeRegistry,
        refused: RefusedMessages,
        link: LinkMonitor,
        prefixes: PrefixCacheIndex,
        leadership: LeaderElection,
        handler: ClientMessageHandler,
        leader: Callable[[], LeaderService | None],
        *,
        silence_limit_s: float,
    ) -> None:
        self._bus = bus
        self._id = controller
        self._registry = registry
        self._refused = refused
        self._link = link
        self._prefixes = prefixes
        self._leadership = leadership
        self._handler = handler
        self._current_leader = leader
        self._silence_limit_s = silence_limit_s
        self._probes = WorkerExitProbes(
            bus,
            link,
            known=lambda: [(view.id, view.report.boot_id) for view in registry.workers],
            busy=self._busy_workers,
            on_gone=self._on_worker_absent,
        )
        self.configure(failover)

    def configure(self, failover: FailoverSettings) -> None:
        """Probe at another interval."""
        self._probe_interval_s = failover.probe_interval_ms / 1000

    async def open(self) -> None:
        await self._bus.subscribe(subjects.WORKER_EVENT_ALL, self._on_worker_event)
        await self._bus.subscribe(subjects.CONTROLLER_EVENT_ALL, self._on_controller_event)
        await self._probes.open()

    async def run(self) -> None:
        """Remove silent members, and probe workers while this controller leads, until cancelled.
        Silence counts only while the link to NATS is stable."""
        while True:
            await asyncio.sleep(self._probe_interval_s)
            await self._link.check()
            if self._link.stable_s >= self._silence_limit_s:
                for gone in self._registry.remove_silent(time.monotonic() - self._silence_limit_s):
                    self._on_worker_gone(gone)
            if self._current_leader() is not None:
                await self._probes.probe()
            elif self._handler.held_messages_expire and not self._leadership.leader_missing:
                await self._handler.close()

    def _busy_workers(self) -> Collection[Boot]:
        leader = self._current_leader()
        return leader.machine.busy_workers if leader is not None else []

    async def _on_worker_event(self, message: IncomingMessage) -> None:
        try:
            event = decode_from(
                subjects.event_sender(message.subject), WorkerEvent, message.payload
            )
        except DecodeError as error:
            self._refused.add(error, message.subject)
            return
        worker = event.worker.id
        known = self._registry.worker(worker)
        if event.type == "joined" or known is None:
            logger.info("worker %s: %s", worker, event.type)
        gone = self._registry.on_worker_event(event, time.monotonic())
        if event.type != "left":
            self._leadership.on_term(event.worker.term)
        if gone is not None:
            self._on_worker_gone(gone)
        if event.type != "left":
            if known is None or gone is not None:
                self._prefixes.request_full_report(worker)
            if (leader := self._current_leader()) is not None:
                leader.handle(WorkerReported(worker))

    def _on_worker_absent(self, boot: Boot) -> None:
        if self._registry.remove(*boot, time.monotonic()):
            self._on_worker_gone(WorkerGone(*boot, _NO_SUBSCRIBER))

    def _on_worker_gone(self, gone: WorkerGone) -> None:
        self._prefixes.forget(gone.worker, gone.boot_id)
        if (leader := self._current_leader()) is not None:
            leader.handle(gone)

    async def _on_controller_event(self, message: IncomingMessage) -> None:
        try:
            event = decode_from(
                subjects.event_sender(message.subject), ControllerEvent, message.payload
            )
        except DecodeError as error:
            self._refused.add(error, message.subject)
            return
        report = event.controller
        if report.id == self._id:
            return
        self._registry.on_controller_event(event, time.monotonic())
        self._leadership.on_controller(report)
        if self._leadership.leads or not report.leader:
            return
        if report.state == "draining":
            await self._handler.hold()
        elif report.state == "stopped":
            self._handler.drop_held_without_id()
