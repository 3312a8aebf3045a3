"""A controller: takes requests, dispatches them, follows them to their end, tells its health."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from controller.adoption import Adoption
from controller.entrance import Entrance
from controller.kept_prefixes import KeptByWorkers
from controller.lease import Lease
from controller.link_watch import LinkWatch
from controller.metrics_server import serving_metrics
from controller.peers import Peers
from controller.probing import Boot, Probing
from controller.registry import Registry, WorkerGone
from controller.requests import Requests
from controller.rollout.conductor import Conductor
from shared import subjects
from shared.bus import Bus, Endpoint, Message, Service
from shared.errors import BusError, DecodeError, SettingsError
from shared.ids import BootId, ControllerId, WorkerId, new_boot_id
from shared.logs import LogStore
from shared.messages.codec import decode, encode
from shared.messages.events import (
    ControllerEvent,
    ControllerReport,
    ControllerState,
    EventType,
    WorkerEvent,
)
from shared.messages.health import ClusterHealth, ControllerHealth
from shared.service import StopRequest
from shared.settings import ClusterSettings
from shared.settings.changes import Change, Effect, changes, effect_on_controller
from shared.settings.load import read_text
from shared.settings.rolled_out import RolledOut
from shared.version import VERSION

logger = logging.getLogger(__name__)

Load = Callable[[RolledOut | None], ClusterSettings]

_ABSENT = "nobody listens there any more"
_TICK_S = 0.25
_STOPPED_S = 1.0
"""A tick so late means that the process stood still, and so did its view of the workers."""
_DRAIN_S = 10.0
_ADOPTED_WITHIN_S = 5.0
_MEET_S = 2.0
_SETTLING_BEATS = 2
"""So many heartbeats after it began to listen a controller has heard who else is there."""


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
    ) -> None:
        """
        Args:
            load: the settings with a version of cluster.yaml, or with the machine's own file; None
                where they stay what they are.
            version: that `settings` are of; 0 for the machine's own file.
        """
        self.id = controller_id
        self.boot_id: BootId = new_boot_id()
        self.state: ControllerState = "starting"
        self._settings = self._started_with = settings
        self._bus = bus
        self._logs = logs
        failover = settings.controller.failover
        self._interval_s = failover.heartbeat_interval_ms / 1000
        self._registry = Registry(
            self._interval_s * failover.missed_heartbeats, settings.controller.circuit_breaker
        )
        self._link = LinkWatch(bus, self._interval_s)
        self._lease = Lease(bus, controller_id, self.boot_id, settings.controller.lease.ttl_s)
        self._kept = KeptByWorkers(bus, self._registry)
        self._peers = Peers(bus, controller_id, self._registry, self._link)
        self._requests = Requests(
            settings, bus, controller_id, self._registry, self._kept, self._peers
        )
        self._entrance = Entrance(settings, bus, controller_id, self._peers, self._requests)
        probe_interval_s = failover.probe_interval_ms / 1000
        self._probing = Probing(
            bus,
            self._link,
            interval_s=probe_interval_s,
            everyone=lambda: [(view.id, view.report.boot_id) for view in self._registry.workers],
            busy=lambda: self._requests.watched_workers,
            subject=lambda boot: subjects.worker_alive(WorkerId(boot[0]), boot[1]),
            on_gone=self._on_worker_absent,
        )
        self._probing_controllers = Probing(
            bus,
            self._link,
            interval_s=probe_interval_s,
            everyone=self._other_controllers,
            busy=self._other_controllers,
            subject=lambda boot: subjects.controller_health(ControllerId(boot[0])),
            on_gone=self._on_controller_absent,
        )
        self._adoption = Adoption(
            bus,
            controller_id,
            self._registry,
            self._requests,
            lambda skill: self._settings.skills.get(skill, []),
            settles_s=_SETTLING_BEATS * self._interval_s,
        )
        self._load = load
        self._needs_restart = False
        self._conductor = Conductor(
            settings.controller.rollout,
            version,
            bus,
            controller_id,
            self._lease,
            self._registry,
            self._requests.take_failovers_ms,
            self._on_stable,
            self._look,
        )
        self._started_at = time.monotonic()

    async def run(self, stop: StopRequest) -> None:
        """Serve until asked to stop, then let requests end and close.

        Raises:
            SettingsError: the address for its metrics cannot be had.
        """
        registry = self._requests.metrics.registry
        with serving_metrics(self._settings.controller.metrics, registry) as url:
            if url is not None:
                logger.info("figures for Prometheus at %s", url)
            await self._serve(stop)

    async def _serve(self, stop: StopRequest) -> None:
        self._bus.on_reconnect.append(self._on_reconnect)
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._link.run()),
                    tasks.create_task(self._lease.run()),
                    tasks.create_task(self._kept.run()),
                    tasks.create_task(self._probing.run()),
                    tasks.create_task(self._probing_controllers.run()),
                    tasks.create_task(self._conductor.run()),
                    tasks.create_task(self._heartbeat()),
                    tasks.create_task(self._tick()),
                    tasks.create_task(self._logs.run(self._bus)),
                ]
                await self._subscribe()
                await self._change_state("ready")
                logger.info("controller %s is ready", self.id, extra={"controller": self.id})
                await stop.wait()
                await self._shut_down(stop)
                for task in background:
                    task.cancel()
        finally:
            await self._conductor.close()
            await self._adoption.close()
            await self._entrance.close()
            await self._requests.close()

    def report(self) -> ControllerReport:
        metrics = self._requests.metrics
        return ControllerReport(
            id=self.id,
            boot_id=self.boot_id,
            version=VERSION,
            state=self.state,
            active_requests=self._requests.active,
            accepted_requests=self._requests.accepted,
            completed_requests=self._requests.completed,
            rejected_requests=self._requests.rejected,
            failed_requests=self._requests.failed,
            waiting_requests=self._requests.waiting,
            retries=metrics.retries,
            migrations=metrics.migrations,
            adoptions=metrics.adoptions,
            sticky_turns=metrics.turns["home"],
            moved_turns=metrics.turns["moved"],
            breakers=self._registry.breakers(time.monotonic()),
            workers=len(self._registry.workers),
            leader=self._lease.holds,
            leader_problem=self._lease.problem,
            config_version=self._conductor.stable,
            needs_restart=self._needs_restart,
            uptime_s=round(time.monotonic() - self._started_at, 1),
            tasks=len(asyncio.all_tasks()),
        )

    # Settings.

    def _on_stable(self, version: int, text: str | None) -> None:
        """All run with a version now."""
        if self._load is None:
            return
        try:
            settings = self._load(RolledOut(version, text) if text is not None else None)
        except SettingsError as error:
            logger.error("version %d of cluster.yaml is not followed: %s", version, error.message)
            return
        self._needs_restart = effect_on_controller(self._started_with, settings) == "restart"
        self._settings = settings
        logging.getLogger().setLevel(settings.logging.level.upper())
        self._registry.configure(settings.controller.circuit_breaker)
        self._requests.configure(settings)
        self._entrance.configure(settings)
        self._conductor.settings = settings.controller.rollout
        restart = "; some of it when it starts again" if self._needs_restart else ""
        logger.info("this controller goes by version %d of cluster.yaml%s", version, restart)

    def _look(self, text: str) -> tuple[Effect | None, Sequence[Change]]:
        """What a text of cluster.yaml would change here, and what that takes.

        Raises:
            SettingsError: it is no good.
        """
        after = read_text(text, "cluster.yaml")
        if self._load is not None:
            after = self._load(RolledOut(self._conductor.stable + 1, text))
        return effect_on_controller(self._settings, after), changes(self._settings, after)

    # Life.

    async def _subscribe(self) -> None:
        """Hear workers before taking requests, so that the first one finds them."""
        bus = self._bus
        await self._logs.answer(bus)
        await bus.subscribe(subjects.WORKER_EVENT_ALL, self._on_worker_event)
        await bus.subscribe(subjects.CONTROLLER_EVENT_ALL, self._on_controller_event)
        await self._kept.open()
        await self._probing.open()
        await self._probing_controllers.open()
        await self._conductor.open()
        await self._requests.open()
        await self._meet_controllers()
        self._adoption.open()
        await self._entrance.open()
        own_health = subjects.controller_health(self.id)
        everyone, cluster = subjects.HEALTH_CONTROLLERS, subjects.HEALTH_CLUSTER
        await bus.serve(
            Service(
                name="mlx-controller",
                version=VERSION,
                description=f"MLX cluster controller {self.id}",
                metadata={"id": self.id, "boot_id": self.boot_id},
                endpoints=(
                    Endpoint("health", own_health, self.id, self._health),
                    Endpoint("controllers", everyone, self.id, self._health),
                    Endpoint("cluster", cluster, subjects.CONTROLLER_QUEUE, self._cluster_health),
                ),
            )
        )

    async def _meet_controllers(self) -> None:
        """Know those that are there before taking requests: they may have turns of a session."""
        try:
            first = await self._bus.request(subjects.HEALTH_CONTROLLERS, b"", timeout_s=_MEET_S)
            others = await self._bus.request_many(subjects.HEALTH_CONTROLLERS, b"", wait_s=0.1)
            for answer in [first, *others]:
                met = decode(ControllerHealth, answer.payload).controller
                event = ControllerEvent(type="heartbeat", controller=met)
                self._registry.on_controller_event(event, time.monotonic())
        except (BusError, DecodeError) as error:
            logger.debug("no other controller was met: %s", error.message)

    async def _shut_down(self, stop: StopRequest) -> None:
        """Others get the new requests, and one of them leads; then they get ours. Where there are
        none, ours may end, and what is left is told that it ended."""
        await self._entrance.shut()
        await self._lease.give_up()
        told = "draining", f"controller {self.id} shut down"
        if self._peers.others:
            # Until they know that we left, turns of our sessions come here, behind those before.
            await self._within(_DRAIN_S, self._requests.leaving.prepare(), stop)
            await self._leave()
            with contextlib.suppress(BusError):
                await self._bus.flush()
            self._peers.left = True
            limit_s = 0.0 if stop.in_haste else _ADOPTED_WITHIN_S
            await self._requests.leaving.hand_over(self._leave, within_s=limit_s)
            await self._requests.fail_rest(*told)
        else:
            await self._change_state("draining")
            await self._within(_DRAIN_S, self._requests.wait_until_idle(), stop)
            await self._requests.fail_all(*told)
            await self._leave()

    async def _within(self, limit_s: float, wait: Awaitable[None], stop: StopRequest) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0 if stop.in_haste else limit_s):
                await wait

    async def _leave(self) -> None:
        await self._change_state("stopped")
        await self._publish_event("left")

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

    async def _on_reconnect(self) -> None:
        self._link.note_new_connection()
        self._adoption.catch_up(view.id for view in self._registry.workers)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self.state != "starting":
                await self._publish_event("heartbeat")

    async def _tick(self) -> None:
        """Notice silence: of workers, and towards clients."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            if now - before > _STOPPED_S:
                logger.warning("this process was stopped for %.1f s", now - before)
                self._link.distrust()
            before = now
            trusted_since = self._link.trusted_since
            if trusted_since is not None and self._bus.connected:
                heard_until = now - self._link.delay_s
                for gone in self._registry.forget_silent(heard_until, trusted_since=trusted_since):
                    await self._on_worker_gone(gone)
                self._adopt()
                self._adoption.catch_up(self._requests.quiet_workers(now))
            await self._requests.tick(now)

    # Workers and controllers.

    async def _on_worker_event(self, message: Message) -> None:
        try:
            event = decode(WorkerEvent, message.payload)
        except DecodeError as error:
            logger.error("an event of a worker could not be read: %s", error.message)
            return
        if event.type == "joined" or self._registry.worker(event.worker.id) is None:
            logger.info("worker %s: %s", event.worker.id, event.type)
        known = self._registry.worker(event.worker.id)
        gone = self._registry.on_worker_event(event, time.monotonic())
        if gone is not None:
            await self._on_worker_gone(gone)
        self._requests.on_worker_event()
        if event.type != "left" and (known is None or gone is not None):
            self._kept.ask(event.worker.id)
            self._adoption.on_worker_heard(event.worker.id)

    async def _on_worker_absent(self, boot: Boot) -> None:
        worker, boot_id = WorkerId(boot[0]), boot[1]
        if self._registry.remove(worker, boot_id, time.monotonic()):
            await self._on_worker_gone(WorkerGone(worker, boot_id, _ABSENT))

    async def _on_worker_gone(self, gone: WorkerGone) -> None:
        self._kept.forget(gone.worker, gone.boot_id)
        await self._requests.on_worker_gone(gone)

    async def _on_controller_event(self, message: Message) -> None:
        try:
            event = decode(ControllerEvent, message.payload)
        except DecodeError as error:
            logger.error("an event of a controller could not be read: %s", error.message)
            return
        self._registry.on_controller_event(event, time.monotonic())
        self._adopt()

    def _other_controllers(self) -> list[Boot]:
        return [(one.id, one.boot_id) for one in self._registry.controllers if one.id != self.id]

    async def _on_controller_absent(self, boot: Boot) -> None:
        self._registry.remove_controller(ControllerId(boot[0]), boot[1])
        self._adopt()

    def _adopt(self) -> None:
        """Take over from the controllers that are gone."""
        for controller in self._registry.take_gone_controllers():
            if controller != self.id:
                logger.warning("controller %s is gone", controller)
                self._adoption.on_controller_gone(controller)

    # Health.

    def _health(self) -> bytes:
        return encode(ControllerHealth(ready=self.state == "ready", controller=self.report()))

    def _cluster_health(self) -> bytes:
        workers = [view.report for view in self._registry.workers]
        ready = sum(worker.state == "ready" for worker in workers)
        status = "unavailable" if not ready else "ready" if ready == len(workers) else "degraded"
        others = [c for c in self._registry.controllers if c.id != self.id]
        return encode(
            ClusterHealth(
                status=status,
                skills=self._settings.skills,
                controllers=sorted([self.report(), *others], key=lambda c: c.id),
                workers=workers,
            )
        )
