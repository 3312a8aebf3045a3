"""A controller: hears who is there, leads or stands by to lead, tells its health."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from controller.fleet.link_monitor import LinkMonitor
from controller.fleet.liveness_probes import Boot, LivenessProbes
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import Registry, WorkerGone
from controller.intake.request_handler import RequestHandler
from controller.leader.election import LeaderElection, LeaseBackend, Probed
from controller.leader.leader import Leader
from controller.leader.transfer import give, taken
from controller.lifecycle.machine import RequestMachine
from controller.metrics_server import serving_metrics
from controller.requests.events import Finish, LeavingBegan, WorkerHeard
from controller.requests.metrics import ControllerMetrics
from controller.rollout.runner import RolloutRunner
from shared import subjects
from shared.bus import Bus, BusMessage, Endpoint, LeaseStore, MicroService
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError, NoResponders, SettingsError
from shared.ids import BootId, ControllerId, WorkerId, new_boot_id
from shared.logs import LogStore
from shared.messages.controller_report import ControllerReport, ControllerState
from shared.messages.dispatch import Dispatch
from shared.messages.events import ControllerEvent, EventType, WorkerEvent
from shared.messages.health import ClusterHealth, ControllerHealth
from shared.messages.health import Leader as LeaderInfo
from shared.messages.stream import StreamError
from shared.service import StopRequest
from shared.settings import ClusterSettings
from shared.settings.changes import Effect, SettingDifference, changes, effect_on_controller
from shared.settings.load import read_text
from shared.settings.rolled_out import RolledOutVersion
from shared.version import VERSION

logger = logging.getLogger(__name__)

Load = Callable[[RolledOutVersion | None], ClusterSettings]

_ABSENT = "nobody listens there any more"
_DRAIN_S = 10.0
_OFFERS_S = 1.5
_SUCCESSOR_S = 3.0
_PROBE_S = 1.0
_ALL_S = 0.3
_SETTLING_BEATS = 3
"""So many heartbeats after it began to listen a controller has heard all workers, busy machines
too; until then it does not say that none can serve a request."""


class Controller:
    """Composes the parts of a controller. `run` is its whole life."""

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        controller_id: ControllerId,
        logs: LogStore,
        *,
        load: Load | None = None,
        version: int = 0,
        store: LeaseBackend | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        """
        Args:
            load: the settings with a version of cluster.yaml, or with the machine's own file; None
                where they stay what they are.
            version: that `settings` are of; 0 for the machine's own file.
            store: of the leader's record.
            random: a number from 0 to 1.
        """
        self.id = controller_id
        self.boot_id: BootId = new_boot_id()
        self.state: ControllerState = "starting"
        self._settings = self._started_with = settings
        self._bus = bus
        self._logs = logs
        self._random = random
        failover = settings.controller.failover
        self._interval_s = failover.heartbeat_interval_ms / 1000
        self._silence_s = self._interval_s * failover.missed_heartbeats
        self._registry = Registry(self._silence_s, settings.controller.circuit_breaker)
        self._link = LinkMonitor(bus)
        self._prefixes = PrefixCacheIndex(bus, self._registry)
        self._metrics = ControllerMetrics(self._registry)
        self._leadership = LeaderElection(
            store or LeaseStore(bus, subjects.LEADER_BUCKET, subjects.LEADER_KEY),
            controller_id,
            self.boot_id,
            self._registry,
            self._link,
            self._probe,
            self._ask_all,
            ttl_s=settings.controller.lease.ttl_s,
            probe_interval_s=failover.probe_interval_ms / 1000,
            overtakes=failover.enabled,
        )
        self._handler = RequestHandler(settings, bus, controller_id, self._cluster_health)
        self._leader: Leader | None = None
        self._followed: object = None
        self._probing = LivenessProbes(
            bus,
            self._link,
            everyone=lambda: [(view.id, view.report.boot_id) for view in self._registry.workers],
            busy=lambda: self._leader.machine.busy_workers if self._leader is not None else [],
            on_gone=self._on_worker_absent,
        )
        self._load = load
        self._needs_restart = False
        self._rollout_runner = RolloutRunner(
            settings.controller.rollout,
            version,
            bus,
            controller_id,
            self._leadership,
            self._registry,
            self._take_failovers_ms,
            self._on_stable,
            self._look,
        )
        self._started_at = time.monotonic()

    async def run(self, stop: StopRequest) -> None:
        """Serve until asked to stop, then let requests end and close.

        Raises:
            SettingsError: the address for its metrics cannot be had.
        """
        registry = self._metrics.registry
        with serving_metrics(self._settings.controller.metrics, registry) as url:
            if url is not None:
                logger.info("figures for Prometheus at %s", url)
            await self._serve(stop)

    async def _serve(self, stop: StopRequest) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._subscribe()
                lives: tuple[Coroutine[None, None, None], ...] = (
                    self._leadership.run(),
                    self._follow(),
                    self._prefixes.run(),
                    self._rollout_runner.run(),
                    self._heartbeat(),
                    self._tick(),
                    self._logs.run(self._bus),
                )
                background = [tasks.create_task(life) for life in lives]
                await self._change_state("ready")
                logger.info("controller %s is ready", self.id, extra={"controller": self.id})
                await stop.wait()
                await self._shut_down(stop)
                for task in background:
                    task.cancel()
        finally:
            await self._rollout_runner.close()
            await self._step_down()

    def report(self) -> ControllerReport:
        metrics, leader = self._metrics, self._leader
        return ControllerReport(
            id=self.id,
            boot_id=self.boot_id,
            version=VERSION,
            state=self.state,
            active_requests=leader.machine.active if leader is not None else 0,
            accepted_requests=metrics.accepted,
            completed_requests=metrics.completed,
            rejected_requests=metrics.rejected,
            failed_requests=metrics.failed,
            waiting_requests=leader.machine.waiting if leader is not None else 0,
            retries=metrics.retries,
            migrations=metrics.migrations,
            adoptions=metrics.adoptions,
            sticky_turns=metrics.turns["home"],
            moved_turns=metrics.turns["moved"],
            breakers=self._registry.breakers(time.monotonic()),
            workers=len(self._registry.workers),
            leader=self._leadership.leads,
            term=self._leadership.term,
            leader_problem=self._leadership.problem,
            config_version=self._rollout_runner.stable,
            needs_restart=self._needs_restart,
            uptime_s=round(time.monotonic() - self._started_at, 1),
            tasks=len(asyncio.all_tasks()),
        )

    def _take_failovers_ms(self) -> dict[WorkerId, float]:
        return self._leader.machine.take_failovers_ms() if self._leader is not None else {}

    # Settings.

    def _on_stable(self, version: int, text: str | None) -> None:
        """All run with a version now."""
        if self._load is None:
            return
        try:
            settings = self._load(RolledOutVersion(version, text) if text is not None else None)
        except SettingsError as error:
            logger.error("version %d of cluster.yaml is not followed: %s", version, error.message)
            return
        self._needs_restart = effect_on_controller(self._started_with, settings) == "restart"
        self._settings = settings
        logging.getLogger().setLevel(settings.logging.level.upper())
        self._registry.configure(settings.controller.circuit_breaker)
        self._handler.configure(settings)
        if self._leader is not None:
            self._leader.machine.configure(settings)
        self._rollout_runner.settings = settings.controller.rollout
        restart = "; some of it when it starts again" if self._needs_restart else ""
        logger.info("this controller goes by version %d of cluster.yaml%s", version, restart)

    def _look(self, text: str) -> tuple[Effect | None, Sequence[SettingDifference]]:
        """What a text of cluster.yaml would change here, and what that takes.

        Raises:
            SettingsError: it is no good.
        """
        after = read_text(text, "cluster.yaml")
        if self._load is not None:
            after = self._load(RolledOutVersion(self._rollout_runner.stable + 1, text))
        return effect_on_controller(self._settings, after), changes(self._settings, after)

    # Life.

    async def _subscribe(self) -> None:
        """Hear workers before leading, so that the first request finds them."""
        bus = self._bus
        await self._logs.answer(bus)
        await bus.subscribe(subjects.WORKER_EVENT_ALL, self._on_worker_event)
        await bus.subscribe(subjects.CONTROLLER_EVENT_ALL, self._on_controller_event)
        await bus.subscribe(subjects.controller_transfer(self.id), self._on_transfer)
        await self._prefixes.open()
        await self._probing.open()
        await self._rollout_runner.open()
        own_health, everyone = subjects.controller_health(self.id), subjects.HEALTH_CONTROLLERS
        await bus.serve(
            MicroService(
                name="mlx-controller",
                version=VERSION,
                description=f"MLX cluster controller {self.id}",
                metadata={"id": self.id, "boot_id": self.boot_id},
                endpoints=(
                    Endpoint("health", own_health, self.id, self._health),
                    Endpoint("controllers", everyone, self.id, self._health),
                ),
            )
        )

    async def _follow(self) -> None:
        """Take requests while this controller leads; hold them while it may lead in a moment."""
        leadership = self._leadership
        while True:
            await leadership.changes.wait_until(lambda: self._standing != self._followed)
            self._followed = self._standing
            if self._leader is not None and (
                not leadership.leads or self._leader.machine.term != leadership.term
            ):
                await self._step_down()
            if leadership.leads and self._leader is None:
                await self._lead()
            elif not leadership.leads and leadership.doubts:
                await self._handler.hold()
            elif not leadership.leads:
                await self._handler.close()

    @property
    def _standing(self) -> object:
        return self._leadership.leads, self._leadership.term, self._leadership.doubts

    async def _lead(self) -> None:
        now = time.monotonic()
        for view in self._registry.workers:
            view.forget_sent()
        machine = RequestMachine(
            self.id,
            self._leadership.term,
            self._settings,
            self._registry,
            self._prefixes,
            self._metrics,
            self._random,
            max_bytes=self._bus.max_payload,
            now=now,
            settled_at=self._started_at + _SETTLING_BEATS * self._interval_s,
        )
        self._leader = Leader(self._bus, self.id, machine, self._leadership, self._link)
        await self._leader.open()
        for view in self._registry.workers:
            self._leader.on(WorkerHeard(view.id))
        await self._publish_event("state_changed")
        await self._handler.serve(self._leader)

    async def _step_down(self) -> None:
        leader, self._leader = self._leader, None
        await self._handler.close()
        if leader is not None:
            await leader.close()

    async def _shut_down(self, stop: StopRequest) -> None:
        """Another controller gets the new requests before this one takes no more; what was offered
        reaches its workers; then another one leads, and gets what no worker has. Where there is no
        other one, requests may end."""
        self._leadership.retire()
        others = [one.id for one in self._registry.controllers if one.id != self.id]
        if self._leader is None:
            await self._leadership.give_up()
            await self._leave()
            return
        leader = self._leader
        await self._change_state("draining")
        if not others:
            await self._handler.take_no_more()
            await self._within(_DRAIN_S, leader.until_idle(), stop)
            error = StreamError.of("draining", f"controller {self.id} shut down")
            leader.on(Finish(None, error))
            await self._flush()
            await self._leadership.give_up()
            await self._leave()
            return
        with contextlib.suppress(BusError):  # now they hold what comes
            await asyncio.gather(*(self._probe(other) for other in others))
        await self._handler.close()
        leader.on(LeavingBegan())
        await self._leave()  # what came before this we have
        await self._within(_OFFERS_S, leader.until_nothing_is_offered(), stop)
        transfers = leader.machine.transferable(time.monotonic())
        await self._flush()
        await self._leadership.give_up()
        if transfers and not await self._within(_SUCCESSOR_S, self._give(transfers), stop):
            logger.error("%d requests could not be transferred", len(transfers))

    async def _give(self, transfers: Sequence[Dispatch]) -> None:
        """Give what no worker has to the next leader."""
        term = self._leadership.term
        while True:
            for report in self._registry.controllers:
                if report.leader and report.id != self.id and report.term > term:
                    if await give(self._bus, self.id, term, report.id, transfers):
                        return
            await asyncio.sleep(0.02)

    async def _within(self, limit_s: float, wait: Awaitable[None], stop: StopRequest) -> bool:
        """Whether it was done in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0 if stop.in_haste else limit_s):
                await wait
                return True
        return False

    async def _leave(self) -> None:
        await self._change_state("stopped")
        await self._publish_event("left")
        await self._flush()

    async def _flush(self) -> None:
        """Return once all that was sent before is at the server."""
        with contextlib.suppress(BusError):
            await self._bus.flush()

    async def _change_state(self, state: ControllerState) -> None:
        joined = self.state == "starting"
        self.state = state
        await self._publish_event("joined" if joined else "state_changed")

    async def _publish_event(self, kind: EventType) -> None:
        event = ControllerEvent(type=kind, controller=self.report())
        try:
            await self._bus.publish(subjects.controller_event(self.id), encode(event))
        except BusError as error:
            logger.debug("event %s not sent: %s", kind, error.message)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self.state != "starting":
                await self._publish_event("heartbeat")

    async def _tick(self) -> None:
        """Notice who is gone: silence counts only while this process hears NATS."""
        while True:
            await asyncio.sleep(self._settings.controller.failover.probe_interval_ms / 1000)
            await self._link.check()
            if self._link.calm_s >= self._silence_s:
                for gone in self._registry.forget_silent(time.monotonic() - self._silence_s):
                    self._on_worker_gone(gone)
            if self._leader is not None:
                await self._probing.probe()
            elif self._handler.in_vain and not self._leadership.doubts:
                await self._handler.close()

    # Workers and controllers.

    async def _on_worker_event(self, message: BusMessage) -> None:
        try:
            event = decode(WorkerEvent, message.payload)
        except DecodeError as error:
            logger.error("an event of a worker could not be read: %s", error.message)
            return
        worker = event.worker.id
        known = self._registry.worker(worker)
        if event.type == "joined" or known is None:
            logger.info("worker %s: %s", worker, event.type)
        gone = self._registry.on_worker_event(event, time.monotonic())
        self._leadership.on_term(event.worker.term)
        if gone is not None:
            self._on_worker_gone(gone)
        if event.type != "left":
            if known is None or gone is not None:
                self._prefixes.ask(worker)
            if self._leader is not None:
                self._leader.on(WorkerHeard(worker))

    def _on_worker_absent(self, boot: Boot) -> None:
        if self._registry.remove(*boot, time.monotonic()):
            self._on_worker_gone(WorkerGone(*boot, _ABSENT))

    def _on_worker_gone(self, gone: WorkerGone) -> None:
        self._prefixes.forget(gone.worker, gone.boot_id)
        if self._leader is not None:
            self._leader.on(gone)

    async def _on_controller_event(self, message: BusMessage) -> None:
        try:
            event = decode(ControllerEvent, message.payload)
        except DecodeError as error:
            logger.error("an event of a controller could not be read: %s", error.message)
            return
        report = event.controller
        if report.id == self.id:
            return
        self._registry.on_controller_event(event, time.monotonic())
        self._leadership.on_term(report.term)
        self._leadership.on_controllers()
        if self._leadership.leads or not report.leader:
            return
        if report.state == "draining":
            await self._handler.hold()
        elif report.state == "stopped":
            self._handler.forget_anonymous()

    async def _on_transfer(self, message: BusMessage) -> None:
        await taken(self._bus, message, self._leader, self._settings.skills)

    async def _probe(self, controller: ControllerId) -> Probed:
        subject = subjects.controller_health(controller)
        try:
            answer = await self._bus.request(subject, b"", timeout_s=_PROBE_S)
            return decode(ControllerHealth, answer.payload).controller
        except NoResponders:
            return "absent"
        except (BusError, DecodeError):
            return "silent"

    async def _ask_all(self) -> list[ControllerReport]:
        """What all controllers say of themselves that answer soon.

        Raises:
            BusError: they cannot be asked.
        """
        answers = await self._bus.request_many(subjects.HEALTH_CONTROLLERS, b"", wait_s=_ALL_S)
        return [decode(ControllerHealth, answer.payload).controller for answer in answers]

    # Health.

    def _health(self) -> bytes:
        return encode(ControllerHealth(ready=self.state == "ready", controller=self.report()))

    def _cluster_health(self) -> bytes:
        workers = [view.report for view in self._registry.workers]
        ready = sum(worker.state == "ready" for worker in workers)
        status = "unavailable" if not ready else "ready" if ready == len(workers) else "degraded"
        leader = LeaderInfo(id=self.id, term=self._leadership.term)
        return encode(
            ClusterHealth(
                status=status,
                leader=leader if self._leadership.leads else None,
                skills=self._settings.skills,
                controllers=sorted(
                    [self.report(), *self._registry.controllers], key=lambda c: c.id
                ),
                workers=workers,
            )
        )
