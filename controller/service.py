"""A controller: observes the cluster, leads or stands by, and reports its health."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from controller.fleet.link_monitor import LinkMonitor
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import NodeRegistry
from controller.intake.request_handler import ClientMessageHandler
from controller.leader.controller_queries import ControllerQueries
from controller.leader.election import LeaderElection
from controller.leader.leader import LeaderService
from controller.leader.lease import LeaseBackend
from controller.leader.transfer import receive_transfer, send_to_successor
from controller.lifecycle.claimed_workers import turns_wait_until
from controller.lifecycle.machine import RequestStateMachine
from controller.membership import MembershipMonitor
from controller.requests.events import EndRequests, ShutdownBegan, WorkerReported
from controller.requests.metrics import ControllerMetrics
from controller.rollout.runner import RolloutRunner
from controller.status import ControllerReporter
from shared import subjects
from shared.bus import Bus, Endpoint, IncomingMessage, LeaseStore, MicroService
from shared.bus_metrics import BusMetrics
from shared.errors import BusError, SettingsError
from shared.ids import BootId, ControllerId, WorkerId, new_boot_id
from shared.logs import BusLogHandler
from shared.messages.controller_report import ControllerReport, ControllerState
from shared.messages.dispatch import Dispatch
from shared.messages.stream import ErrorDetails
from shared.metrics_server import serving_metrics
from shared.refused_messages import RefusedMessages
from shared.service import StopSignal
from shared.settings import ClusterSettings
from shared.settings.changes import Effect, SettingDifference, changes, effect_on_controller
from shared.settings.load import read_text
from shared.settings.rolled_out import RolledOutVersion
from shared.telemetry import Tracer
from shared.version import VERSION

logger = logging.getLogger(__name__)

LoadSettings = Callable[[RolledOutVersion | None], ClusterSettings]

_DRAIN_S = 10.0
_OFFERS_S = 1.5
_SUCCESSOR_S = 3.0
_SETTLING_HEARTBEATS = 3
"""After this many heartbeats from its start a controller has received a report of every worker, of
busy machines too; until then it does not answer that no worker can serve a request."""


class Controller:
    """Composes the parts of a controller. `run` is its whole life."""

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        controller_id: ControllerId,
        logs: BusLogHandler,
        *,
        load: LoadSettings | None = None,
        version: int = 0,
        store: LeaseBackend | None = None,
        random: Callable[[], float] = random.random,
        tracer: Tracer | None = None,
    ) -> None:
        """
        Args:
            load: returns the settings with a version of cluster.yaml, or with the machine's own
                file; None if the settings never change.
            version: of `settings`; 0 for the machine's own file.
            store: of the leader's record.
            random: returns a number from 0 to 1.
            tracer: None if requests are not traced.
        """
        self.id = controller_id
        self.boot_id: BootId = new_boot_id()
        self._settings = self._initial_settings = settings
        self._bus = bus
        self._logs = logs
        self._random = random
        self._tracer = tracer
        failover = settings.controller.failover
        self._interval_s = failover.heartbeat_interval_ms / 1000
        silence_limit_s = self._interval_s * failover.missed_heartbeats
        self._registry = NodeRegistry(silence_limit_s, settings.controller.circuit_breaker)
        self._link = LinkMonitor(bus)
        self._refused = RefusedMessages(silence_limit_s)
        self._prefixes = PrefixCacheIndex(bus, self._registry, self._refused)
        self._metrics = ControllerMetrics(self._registry, self._refused)
        self._metrics.registry.register(BusMetrics(bus.statistics))
        self._peers = ControllerQueries(bus, self._registry, self._refused)
        self._leadership = LeaderElection(
            store or LeaseStore(bus, subjects.LEADER_BUCKET, subjects.LEADER_KEY),
            controller_id,
            self.boot_id,
            self._registry,
            self._link,
            self._peers,
            ttl_s=settings.controller.lease.ttl_s,
            probe_interval_s=failover.probe_interval_ms / 1000,
            takes_over=failover.enabled,
        )
        self._leader: LeaderService | None = None
        self._applied_role: object = None
        self._load = load
        self._rollout_runner = RolloutRunner(
            settings.controller.rollout,
            version,
            bus,
            controller_id,
            self._leadership,
            self._registry,
            self._take_failovers_ms,
            self._on_stable_version,
            self._plan,
        )
        self._status = ControllerReporter(
            bus,
            controller_id,
            self.boot_id,
            self._registry,
            self._refused,
            self._metrics,
            self._leadership,
            self._rollout_runner,
            lambda: self._leader.machine if self._leader is not None else None,
            skills=settings.skills,
            heartbeat_interval_s=self._interval_s,
        )
        self._handler = ClientMessageHandler(
            settings, bus, controller_id, self._status.cluster_health, tracer
        )
        self._membership = MembershipMonitor(
            failover,
            bus,
            controller_id,
            self._registry,
            self._refused,
            self._link,
            self._prefixes,
            self._leadership,
            self._handler,
            lambda: self._leader,
            silence_limit_s=silence_limit_s,
        )
        self._started_at = time.monotonic()

    @property
    def state(self) -> ControllerState:
        return self._status.state

    def report(self) -> ControllerReport:
        return self._status.report()

    async def run(self, stop: StopSignal) -> None:
        """Serve until asked to stop, then drain and close.

        Raises:
            SettingsError: the address of the metrics server is unavailable.
        """
        registry = self._metrics.registry
        metrics = self._settings.controller.metrics
        with serving_metrics(metrics, registry, section="controller.metrics") as url:
            if url is not None:
                logger.info("Prometheus metrics at %s", url)
            await self._serve(stop)

    async def _serve(self, stop: StopSignal) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._subscribe()
                services: tuple[Coroutine[None, None, None], ...] = (
                    self._leadership.run(),
                    self._follow_election(),
                    self._rollout_runner.run(),
                    self._status.run(),
                    self._membership.run(),
                    self._logs.run(self._bus),
                )
                background = [tasks.create_task(service) for service in services]
                await self._status.change_state("ready")
                logger.info("controller %s is ready", self.id, extra={"controller": self.id})
                await stop.wait()
                await self._shut_down(stop)
                for task in background:
                    task.cancel()
        finally:
            await self._rollout_runner.close()
            await self._prefixes.close()
            await self._step_down()

    # Settings.

    def _take_failovers_ms(self) -> dict[WorkerId, float]:
        return self._leader.machine.take_failovers_ms() if self._leader is not None else {}

    def _on_stable_version(self, version: int, text: str | None) -> None:
        """Apply a version of cluster.yaml that was rolled out to all workers."""
        if self._load is None:
            return
        try:
            settings = self._load(RolledOutVersion(version, text) if text is not None else None)
        except SettingsError as error:
            logger.error("version %d of cluster.yaml was not applied: %s", version, error.message)
            return
        needs_restart = effect_on_controller(self._initial_settings, settings) == "restart"
        self._settings = settings
        logging.getLogger().setLevel(settings.logging.level.upper())
        self._registry.configure(settings.controller.circuit_breaker)
        self._membership.configure(settings.controller.failover)
        self._handler.configure(settings)
        if self._leader is not None:
            self._leader.machine.configure(settings)
        self._rollout_runner.settings = settings.controller.rollout
        self._status.skills, self._status.needs_restart = settings.skills, needs_restart
        restart = "; some of it after a restart" if needs_restart else ""
        logger.info("this controller applies version %d of cluster.yaml%s", version, restart)

    def _plan(self, text: str) -> tuple[Effect | None, Sequence[SettingDifference]]:
        """Return what a text of cluster.yaml would change here, and what the change takes.

        Raises:
            SettingsError: the text is invalid.
        """
        after = read_text(text, "cluster.yaml")
        if self._load is not None:
            after = self._load(RolledOutVersion(self._rollout_runner.stable + 1, text))
        return effect_on_controller(self._settings, after), changes(self._settings, after)

    # Leading and standing by.

    async def _subscribe(self) -> None:
        """Subscribe to workers before leading, so that the first request finds them."""
        bus = self._bus
        await self._logs.answer(bus)
        await self._membership.open()
        await bus.subscribe(subjects.controller_transfer(self.id), self._on_transfer)
        await self._prefixes.open()
        await self._rollout_runner.open()
        own_health, all_health = subjects.controller_health(self.id), subjects.HEALTH_CONTROLLERS
        answer = self._status.controller_health
        await bus.serve(
            MicroService(
                name="mlx-controller",
                version=VERSION,
                description=f"MLX cluster controller {self.id}",
                metadata={"id": self.id, "boot_id": self.boot_id},
                endpoints=(
                    Endpoint("health", own_health, self.id, answer),
                    Endpoint("controllers", all_health, self.id, answer),
                ),
            )
        )

    async def _follow_election(self) -> None:
        """Serve requests while this controller leads; hold them while it may take over soon."""
        leadership = self._leadership
        while True:
            await leadership.changes.wait_until(lambda: self._role != self._applied_role)
            self._applied_role = self._role
            if self._leader is not None and (
                not leadership.leads or self._leader.machine.term != leadership.term
            ):
                await self._step_down()
            if leadership.leads and self._leader is None:
                await self._lead()
            elif not leadership.leads and leadership.leader_missing:
                await self._handler.hold()
            elif not leadership.leads:
                await self._handler.close()

    @property
    def _role(self) -> object:
        return self._leadership.leads, self._leadership.term, self._leadership.leader_missing

    async def _lead(self) -> None:
        now = time.monotonic()
        settled_at = self._started_at + _SETTLING_HEARTBEATS * self._interval_s
        for view in self._registry.workers:
            view.reset_unreported()
        machine = RequestStateMachine(
            self.id,
            self.boot_id,
            self._leadership.term,
            self._settings,
            self._registry,
            self._prefixes,
            self._metrics,
            self._random,
            max_bytes=self._bus.max_payload,
            now=now,
            settled_at=settled_at,
            turns_wait_until=turns_wait_until(
                first_term=self._leadership.term == 1,
                was_released=self._leadership.was_released,
                started_at=self._started_at,
                settled_at=settled_at,
                last_gone_at=self._registry.last_gone_at(now),
            ),
        )
        self._leader = LeaderService(
            self._bus, self.id, machine, self._leadership, self._link, self._refused, self._tracer
        )
        await self._leader.open()
        for view in self._registry.workers:
            self._leader.handle(WorkerReported(view.id))
        await self._status.publish("state_changed")
        await self._handler.serve(self._leader)

    async def _step_down(self) -> None:
        leader, self._leader = self._leader, None
        await self._handler.close()
        if leader is not None:
            await leader.close()

    async def _on_transfer(self, message: IncomingMessage) -> None:
        await receive_transfer(
            self._bus, message, self._leader, self._settings.skills, self._refused
        )

    # Shutdown.

    async def _shut_down(self, stop: StopSignal) -> None:
        """Shut down without losing a request.

        First the standbys start to hold new requests; only then this controller stops accepting
        them. It waits until workers have answered what they were offered. Then another controller
        leads, and receives the requests that no worker has. Without a standby, this controller
        drains.
        """
        self._leadership.withdraw()
        standbys = [other.id for other in self._registry.controllers if other.id != self.id]
        if self._leader is None:
            await self._leadership.resign()
            await self._publish_stopped()
            return
        leader = self._leader
        await self._status.change_state("draining")
        if not standbys:
            await self._handler.stop_accepting()
            await self._within(_DRAIN_S, leader.until_idle(), stop)
            error = ErrorDetails.of("draining", f"controller {self.id} shut down")
            leader.handle(EndRequests(None, error))
            await self._flush()
            await self._leadership.resign()
            await self._publish_stopped()
            return
        with contextlib.suppress(BusError):  # once they answer, they hold new requests
            await asyncio.gather(*(self._peers.probe(standby) for standby in standbys))
        await self._handler.close()
        leader.handle(ShutdownBegan())
        await self._publish_stopped()  # everything published before this has arrived here
        await self._within(_OFFERS_S, leader.until_offers_answered(), stop)
        requests = leader.machine.transferable(time.monotonic())
        await self._flush()
        await self._leadership.resign()
        if requests and not await self._within(_SUCCESSOR_S, self._transfer(requests), stop):
            logger.error("%d requests could not be transferred", len(requests))

    async def _transfer(self, requests: Sequence[Dispatch]) -> None:
        term = self._leadership.term
        await send_to_successor(self._bus, self._registry, self.id, term, requests)

    async def _within(self, limit_s: float, wait: Awaitable[None], stop: StopSignal) -> bool:
        """Whether the awaitable completed within the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0 if stop.immediate else limit_s):
                await wait
                return True
        return False

    async def _publish_stopped(self) -> None:
        await self._status.change_state("stopped")
        await self._status.publish("left")
        await self._flush()

    async def _flush(self) -> None:
        """Return once the server has received everything that was sent before."""
        with contextlib.suppress(BusError):
            await self._bus.flush()
