"""The agent of one node: NATS on one side, engine processes on the other.

It never imports MLX, so it survives what kills an engine.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from shared import subjects
from shared.bus import Bus, Endpoint, MicroService
from shared.codec import encode
from shared.errors import BusError, RequestError
from shared.folders import cache_folder, data_folder
from shared.ids import BootId, WorkerId, new_boot_id
from shared.logs import LogStore
from shared.messages.control import ConfigureWorker, ControlReply, DrainWorker, SettingChange
from shared.messages.events import EventType, KeptPrefixes, WorkerEvent, WorkerReport, WorkerState
from shared.messages.health import WorkerHealth
from shared.messages.stream import StreamError
from shared.service import StopRequest
from shared.settings import ClusterSettings
from shared.settings.worker import WorkerSettings
from shared.version import VERSION
from worker.agent.configuration import Configuration
from worker.agent.engine_plan import engine_plan
from worker.agent.leader_claim import LeaderClaim
from worker.agent.reconfiguration import Reconfiguration
from worker.agent.report import build_report
from worker.agent.request_handler import RequestHandler
from worker.agent.sleep_notice import SleepNotice, this_machine
from worker.engine_process.process import EngineProcess
from worker.host.cpu_usage import CpuUsage
from worker.host.machine import available_cores
from worker.link.facts import EngineStarted, Fact
from worker.link.orders import Order
from worker.models.pre_warming import PreWarming
from worker.models.predictive_warming import PredictiveWarming
from worker.peer_files.sharing import Sharing
from worker.requests.active_request import ActiveRequest
from worker.scheduling.cached_prefixes import CachedPrefixTracker
from worker.scheduling.scheduler import Scheduler
from worker.sessions.book import SessionStore
from worker.sessions.files import SessionFiles
from worker.streams.ownership import find_reassigned
from worker.streams.publisher import StreamPublisher
from worker.streams.stream_lease import StreamLease

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_TELL_KEPT_S = 5.0
_LAST_WORDS_S = 5.0


class Agent:
    """Composes the parts of a worker. `run` is its whole life."""

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        worker_id: WorkerId,
        logs: LogStore,
        configuration: Configuration | None = None,
    ) -> None:
        """Without `configuration` its settings stay what they are."""
        self.id = worker_id
        self.boot_id: BootId = new_boot_id()
        self._state: WorkerState = "starting"
        self._asleep = False
        self._settings = settings
        self._bus = bus
        self._logs = logs
        failover = settings.controller.failover
        self._interval_s = failover.heartbeat_interval_ms / 1000
        self._lease = StreamLease(self._interval_s * failover.missed_heartbeats)
        self._publisher = StreamPublisher(
            bus,
            worker_id,
            self.boot_id,
            self._lease,
            check_streams=self._drop_lost_streams,
            on_missed=self._on_nobody_listens,
        )
        self._engines: list[EngineProcess] = []
        self._sessions = SessionStore(
            settings.worker.sessions,
            SessionFiles(_sessions_folder(settings.worker, worker_id)),
            self._order,
            pin_limit_bytes=self._kept_limit_bytes,
        )
        self._kept = CachedPrefixTracker(worker_id, self.boot_id, self._sessions)
        self._scheduler = Scheduler(
            worker_id, settings, self._engines, self._publisher.put, self._sessions, self._kept
        )
        self._pre_warming = PreWarming(settings, self._scheduler.models, self._scheduler.changes)
        self._predictive = PredictiveWarming(
            settings.worker.pre_warming.predictive,
            self._scheduler.models,
            data_folder() / "use" / f"{worker_id}.json",
        )
        self._scheduler.models.on_use.append(self._predictive.used)
        self._sharing = Sharing(settings.worker.peer_files, bus, worker_id)
        self._scheduler.models.loader.ask_peers = self._sharing.ask
        self._cpu = CpuUsage()
        self._started_at = time.monotonic()
        self._drain_requested = StopRequest()
        self._drain_order: DrainWorker | None = None
        self._draining: asyncio.Timeout | None = None
        self._claim = LeaderClaim()
        self._request_handler = RequestHandler(
            bus,
            worker_id,
            self.boot_id,
            self._scheduler,
            self._claim,
            strict=settings.security.strict_inbox,
            state=lambda: self.state,
            asleep=lambda: self._asleep,
            drain=self._on_drain,
            configure=self._on_configure,
        )
        self._reconfiguration = (
            Reconfiguration(settings, configuration, self._apply, self._on_drain)
            if configuration is not None
            else None
        )
        self._announced = False
        engines = settings.worker.engines
        plan = engine_plan(settings)
        logger.info("%d engine(s): %s", plan.count, plan.why, extra={"worker": worker_id})
        self._engines.extend(
            EngineProcess(
                index,
                engines,
                _engine_arguments(settings.worker, worker_id, index, plan.count),
                engines.fixed_threads or max(1, available_cores() // plan.count),
                retry_after_failure_s=settings.controller.circuit_breaker.recovery_timeout_ms
                / 1000,
                on_fact=self._on_fact,
                on_lost=self._on_engine_lost,
                explain=self._scheduler.explain_end,
            )
            for index in range(plan.count)
        )

    @property
    def state(self) -> WorkerState:
        """As others see it: a worker whose machine sleeps is one that is not ready yet."""
        leaves = self._state in ("draining", "stopped")
        return "starting" if self._asleep and not leaves else self._state

    async def run(self, stop: StopRequest) -> bool:
        """Serve until asked to stop, then drain and close; True where it is to be started again."""
        await self._subscribe()
        self._lease.restore(self._bus.connections)
        try:
            await self._serve(stop)
        finally:  # also after a fault of our own: no engine outlives its agent
            for engine in self._engines:
                engine.kill()
            self._sharing.close()
        order = self._drain_order
        return order is not None and order.restart and not stop.requested

    async def _serve(self, stop: StopRequest) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [
                *(tasks.create_task(engine.run()) for engine in self._engines),
                tasks.create_task(self._publisher.run()),
                tasks.create_task(self._heartbeat()),
                tasks.create_task(self._tick()),
                tasks.create_task(self._guard_memory()),
                tasks.create_task(self._tell_kept()),
                tasks.create_task(self._scheduler.models.loader.run()),
                tasks.create_task(self._logs.run(self._bus)),
                tasks.create_task(self._warm_up()),
                tasks.create_task(self._predictive.run()),
                tasks.create_task(self._mind_sleep()),
            ]
            if self._settings.worker.pre_warming.register_when == "warming":
                await self._announce_state()
            self._bus.on_reconnect.append(self._announce_state)
            await _first_of(stop, self._drain_requested)
            await self._shut_down(stop)
            for task in background:
                task.cancel()

    def _order(self, engine: int, order: Order) -> None:
        """Nothing is to be told to an engine of an earlier run that there is not now."""
        if engine < len(self._engines):
            self._engines[engine].send(order)

    def _kept_limit_bytes(self) -> int:
        kept = [engine.measured.kv_memory for engine in self._engines]
        return sum(each.memory_limit_bytes + each.disk_limit_bytes for each in kept)

    def report(self) -> WorkerReport:
        """The whole state, for heartbeats and health."""
        return build_report(
            self._settings,
            self._scheduler,
            self._pre_warming.status(self._predictive.proposed),
            self._cpu,
            self._reconfiguration,
            worker_id=self.id,
            boot_id=self.boot_id,
            version=VERSION,
            state=self.state,
            term=self._claim.term,
            uptime_s=time.monotonic() - self._started_at,
            tasks=len(asyncio.all_tasks()),
        )

    # Life.

    async def _subscribe(self) -> None:
        bus = self._bus
        await self._request_handler.open()
        await self._sharing.open()
        await self._logs.answer(bus)
        health = subjects.worker_health(self.id)
        await bus.serve(
            MicroService(
                name="mlx-worker",
                version=VERSION,
                description=f"MLX worker {self.id}",
                metadata={"id": self.id, "boot_id": self.boot_id},
                endpoints=(Endpoint("health", health, self.id, self._health),),
            )
        )
        logger.info(
            "worker %s starts with %d engine(s)", self.id, len(self._engines),
            extra={"worker": self.id},
        )  # fmt: skip

    async def _warm_up(self) -> None:
        await self._pre_warming.run(
            lambda: any(engine.state == "running" for engine in self._engines), self._on_warming
        )
        if self._state == "warming":
            await self._change_state("ready")

    async def _on_warming(self) -> None:
        if self._settings.worker.pre_warming.register_when == "warming":
            await self._change_state("warming")
        else:
            self._state = "warming"

    async def _shut_down(self, stop: StopRequest) -> None:
        """In this order: nobody sends us new work; what runs may end; the rest is told that
        it ended; engines stop; only then the controllers hear that we left."""
        await self._change_state("draining")
        if not stop.in_haste:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._drain_limit_s) as self._draining:
                    await self._scheduler.changes.wait_until(lambda: self._scheduler.idle)
        self._draining = None
        self._scheduler.requeue_all(StreamError.of("draining", f"worker {self.id} shut down"))
        await self._publisher.drain(_LAST_WORDS_S)
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        await asyncio.to_thread(self._sessions.close)
        await self._change_state("stopped")
        await self._publish_event("left")
        logger.info("worker %s left", self.id)

    def _on_drain(self, order: DrainWorker) -> None:
        """The last order counts."""
        self._drain_order = order
        self._drain_requested.request()
        if self._draining is not None and not self._draining.expired():
            self._draining.reschedule(asyncio.get_running_loop().time() + self._drain_limit_s)

    @property
    def _drain_limit_s(self) -> float:
        ordered = self._drain_order.deadline_ms if self._drain_order is not None else None
        return (self._settings.worker.drain_timeout_ms if ordered is None else ordered) / 1000

    def _on_configure(self, order: ConfigureWorker) -> ControlReply:
        if self._reconfiguration is None:
            raise RequestError("the settings of this worker cannot be changed", code="settings")
        if not order.dry_run:
            effect = self._reconfiguration.take(order)
            return ControlReply(worker=self.id, ok=True, effect=effect)
        effect, changes = self._reconfiguration.look(order)
        told = [SettingChange(key=one.key, before=one.before, after=one.after) for one in changes]
        return ControlReply(worker=self.id, ok=True, effect=effect, changes=told)

    def _apply(self, settings: ClusterSettings) -> None:
        """Go by other settings, from now on: those that need no restart."""
        self._settings = settings
        logging.getLogger().setLevel(settings.logging.level.upper())
        self._sessions.configure(settings.worker.sessions)
        self._scheduler.configure(settings)
        self._pre_warming.configure(settings)

    async def _mind_sleep(self) -> None:
        if (power := this_machine()) is not None:
            await SleepNotice(
                power,
                busy=lambda: not self._scheduler.idle,
                before=self.fall_asleep,
                after=self.wake_up,
            ).run()

    async def fall_asleep(self) -> None:
        """Before the machine sleeps: nobody sends us new work, and what runs goes on elsewhere, or
        here when we wake up."""
        await self._change_sleep(True)
        message = f"the machine of worker {self.id} is about to sleep"
        self._scheduler.requeue_all(StreamError.of("draining", message))
        await self._publisher.drain(_LAST_WORDS_S)
        with contextlib.suppress(BusError):
            await self._bus.flush(timeout_s=_LAST_WORDS_S)

    async def wake_up(self) -> None:
        """The machine has woken."""
        await self._change_sleep(False)

    async def _change_sleep(self, asleep: bool) -> None:
        if self._asleep != asleep:
            self._asleep = asleep
            if self._announced:
                await self._announce_state()

    async def _change_state(self, state: WorkerState) -> None:
        if self._state != state:
            self._state = state
            if state == "ready" and self._reconfiguration is not None:
                self._reconfiguration.came_up()
            await self._announce_state()

    async def _announce_state(self) -> None:
        await self._publish_event("state_changed" if self._announced else "joined")
        self._announced = True

    async def _heartbeat(self) -> None:
        """Tell that we live; what has surely arrived renews the lease on our streams."""
        while True:
            await asyncio.sleep(self._interval_s)
            sent_at, connection = self._lease.now(), self._bus.connections
            if self._announced:
                await self._publish_event("heartbeat")
            with contextlib.suppress(BusError):
                await self._bus.flush(timeout_s=self._interval_s)
                self._lease.renew(sent_at, connection)

    async def _tell_kept(self) -> None:
        while True:
            if (changes := self._kept.changes()) is not None:
                await self._publish(subjects.kept_event(self.id), changes)
            await asyncio.sleep(_TELL_KEPT_S)

    async def _publish_event(self, kind: EventType) -> None:
        event = WorkerEvent(type=kind, worker=self.report())
        await self._publish(subjects.worker_event(self.id), event)

    async def _publish(self, subject: str, event: WorkerEvent | KeptPrefixes) -> None:
        try:
            await self._bus.publish(subject, encode(event))
        except BusError as error:
            logger.debug("an event was not sent on %s: %s", subject, error.message)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._scheduler.tick()
            self._sessions.tick()

    async def _guard_memory(self) -> None:
        while True:
            await asyncio.sleep(self._settings.worker.resource_limits.check_interval_ms / 1000)
            self._scheduler.relieve_memory()

    # Engines.

    async def _on_fact(self, engine: EngineProcess, fact: Fact) -> None:
        if isinstance(fact, EngineStarted):
            self._scheduler.models.loader.on_engine_started(engine)
            logger.info("engine %d runs on %s", engine.index, fact.device)
            if self._state == "unhealthy":
                logger.info("worker %s has an engine again and takes requests", self.id)
                await self._change_state("ready")
        self._scheduler.on_fact(engine, fact)
        self._scheduler.changes.notify()
        await self._publisher.wait_for_room()

    async def _on_engine_lost(self, engine: EngineProcess, reason: str) -> None:
        message = f"the engine process of {self.id} ended ({reason})"
        self._scheduler.on_engine_lost(engine, StreamError.of("engine_crashed", message))
        self._scheduler.changes.notify()
        leaves = self._state in ("draining", "stopped")
        if not leaves and all(other.state == "failed" for other in self._engines):
            logger.error("worker %s takes no requests until an engine runs again", self.id)
            await self._change_state("unhealthy")

    # Messages.

    async def _drop_lost_streams(self, unsent: Iterable[ActiveRequest]) -> None:
        """After we were away: what others serve now, or was ended, is not ours any more."""
        asked = {*unsent, *self._scheduler.requests()}
        for request in await find_reassigned(self._bus, self.id, asked):
            logger.warning(
                "dropped: it was ended or went elsewhere while this worker was away",
                extra={"request_id": request.dispatch.request_id},
            )
            self._scheduler.drop(request)

    def _on_nobody_listens(self, inbox: str) -> None:
        self._scheduler.on_missed(inbox)

    def _health(self) -> bytes:
        return encode(WorkerHealth(ready=self.state == "ready", worker=self.report()))


async def _first_of(*stops: StopRequest) -> None:
    waiting = [asyncio.ensure_future(stop.wait()) for stop in stops]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()


def _engine_arguments(
    settings: WorkerSettings, worker_id: WorkerId, index: int, engines: int
) -> list[str]:
    arguments = ["--settings", settings.model_dump_json(), "--engines", str(engines)]
    if (folder := _kv_folder(settings, worker_id)) is not None:
        arguments += ["--kv-folder", str(folder / f"engine-{index}")]
    return arguments


def _kv_folder(settings: WorkerSettings, worker_id: WorkerId) -> Path | None:
    """For what is kept of texts; None where nothing may be kept on disk."""
    if not (settings.kv_cache.enabled and settings.kv_cache.disk_mb):
        return None
    named = settings.kv_cache.disk_path
    folder = Path(named).expanduser() if named else cache_folder() / "kv" / worker_id
    return folder.absolute()


def _sessions_folder(settings: WorkerSettings, worker_id: WorkerId) -> Path | None:
    folder = _kv_folder(settings, worker_id)
    return folder / "sessions" / worker_id if folder is not None else None
