"""The agent of a worker: NATS on one side, engine processes on the other.

The agent never imports MLX, so that it survives the crash of an engine.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

from shared import subjects
from shared.bus import Bus, Endpoint, MicroService
from shared.codec import encode
from shared.errors import BusError, RequestError
from shared.folders import data_folder
from shared.ids import BootId, WorkerId, new_boot_id
from shared.logs import BusLogHandler
from shared.messages.control import ConfigureWorker, ControlReply, DrainWorker, SettingChange
from shared.messages.health import WorkerHealth
from shared.messages.stream import ErrorDetails
from shared.messages.worker_report import WorkerReport, WorkerState
from shared.service import StopSignal, first_of
from shared.settings import ClusterSettings
from shared.telemetry import Tracer
from shared.version import VERSION
from worker.agent.announcer import Announcer
from worker.agent.config_switcher import ConfigSwitcher
from worker.agent.configuration import RolledOutConfiguration
from worker.agent.engine_count import engine_count
from worker.agent.engines import engine_processes, sessions_folder
from worker.agent.leader_fence import LeaderFence
from worker.agent.report import build_report
from worker.agent.request_handler import AgentMessageHandler
from worker.agent.sleep_notice import SleepHandler, this_machine
from worker.engine_process.process import EngineProcess
from worker.host.process_usage import CpuMeter
from worker.link.facts import EngineStarted, Fact
from worker.link.orders import Order
from worker.models.pre_warming import PreWarming
from worker.models.predictive_warming import PredictiveWarming
from worker.peer_files.sharing import PeerFileSharing
from worker.requests.active_request import ActiveRequest
from worker.requests.isolation import FailureIsolation
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.scheduler import RequestScheduler
from worker.sessions.files import SessionFiles
from worker.sessions.store import SessionStore
from worker.streams.ownership import find_reassigned
from worker.streams.publish_lease import PublishLease
from worker.streams.publisher import StreamPublisher

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_FINAL_PUBLISH_S = 5.0
"""How long the last messages may take before shutdown or sleep."""


class WorkerAgent:
    """Composes the parts of a worker; `run` is its whole life."""

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        worker_id: WorkerId,
        logs: BusLogHandler,
        configuration: RolledOutConfiguration | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Without `configuration` the settings cannot be changed by a roll-out; without `tracer`
        requests are not traced."""
        self.id = worker_id
        self.boot_id: BootId = new_boot_id()
        self._state: WorkerState = "starting"
        self._asleep = False
        self._settings = settings
        self._bus = bus
        self._logs = logs
        failover = settings.controller.failover
        interval_s = failover.heartbeat_interval_ms / 1000
        self._lease = PublishLease(interval_s * failover.missed_heartbeats)
        self._isolation = FailureIsolation()
        self._publisher = StreamPublisher(
            bus,
            worker_id,
            self.boot_id,
            self._lease,
            check_streams=self._drop_reassigned,
            on_missed=lambda inbox: self._scheduler.on_missed(inbox),
            isolation=self._isolation,
            tracer=tracer,
        )
        self._engines: list[EngineProcess] = []
        self._sessions = SessionStore(
            settings.worker.sessions,
            SessionFiles(sessions_folder(settings.worker, worker_id)),
            self._order,
            pin_limit_bytes=self._kv_memory_limit_bytes,
        )
        cached_prefixes = LocalPrefixIndex(worker_id, self.boot_id, self._sessions)
        self._scheduler = RequestScheduler(
            worker_id,
            settings,
            self._engines,
            self._publisher.put,
            self._sessions,
            cached_prefixes,
            self._isolation,
            tracer,
        )
        self._announcer = Announcer(
            bus,
            worker_id,
            self._lease,
            cached_prefixes,
            self._isolation,
            interval_s=interval_s,
            report=self.report,
        )
        self._pre_warming = PreWarming(settings, self._scheduler.models, self._scheduler.changes)
        self._predictive = PredictiveWarming(
            settings.worker.pre_warming.predictive,
            self._scheduler.models,
            data_folder() / "use" / f"{worker_id}.json",
        )
        self._scheduler.models.on_use.append(self._predictive.record_request)
        self._sharing = PeerFileSharing(settings.worker.peer_files, bus, worker_id)
        self._scheduler.models.loader.ask_peers = self._sharing.find_offers
        self._cpu = CpuMeter()
        self._started_at = time.monotonic()
        self._drain_requested = StopSignal()
        self._drain_order: DrainWorker | None = None
        self._drain_timeout: asyncio.Timeout | None = None
        self._fence = LeaderFence()
        self._request_handler = AgentMessageHandler(
            bus,
            worker_id,
            self.boot_id,
            self._scheduler,
            self._fence,
            strict=settings.security.strict_inbox,
            state=lambda: self.state,
            asleep=lambda: self._asleep,
            drain=self._on_drain,
            configure=self._on_configure,
        )
        self.refused = self._request_handler.refused
        self._reconfiguration = (
            ConfigSwitcher(settings, configuration, self._apply, self._on_drain)
            if configuration is not None
            else None
        )
        plan = engine_count(settings)
        logger.info("%d engine(s): %s", plan.count, plan.why, extra={"worker": worker_id})
        self._engines += engine_processes(
            settings,
            worker_id,
            plan.count,
            on_fact=self._on_fact,
            on_lost=self._on_engine_lost,
            explain=self._scheduler.explain_end,
        )

    @property
    def state(self) -> WorkerState:
        """The reported state: a worker whose machine sleeps reports that it is starting."""
        shutting_down = self._state in ("draining", "stopped")
        return "starting" if self._asleep and not shutting_down else self._state

    async def run(self, stop: StopSignal) -> bool:
        """Serve until a stop or drain is requested; returns whether the worker shall restart."""
        await self._subscribe()
        self._lease.restore(self._bus.connections)
        try:
            await self._serve(stop)
        finally:  # also after an exception: no engine outlives its agent
            for engine in self._engines:
                engine.kill()
            self._sharing.close()
        order = self._drain_order
        return order is not None and order.restart and not stop.requested

    async def _serve(self, stop: StopSignal) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [
                *(tasks.create_task(engine.run()) for engine in self._engines),
                tasks.create_task(self._publisher.run()),
                tasks.create_task(self._announcer.send_heartbeats()),
                tasks.create_task(self._tick()),
                tasks.create_task(self._guard_memory()),
                tasks.create_task(self._announcer.report_cached_prefixes()),
                tasks.create_task(self._scheduler.models.loader.run()),
                tasks.create_task(self._logs.run(self._bus)),
                tasks.create_task(self._warm_up()),
                tasks.create_task(self._predictive.run()),
                tasks.create_task(self._watch_sleep()),
            ]
            if self._settings.worker.pre_warming.register_when == "warming":
                await self._announcer.announce_state()
            self._bus.on_reconnect.append(self._announcer.announce_state)
            await first_of(stop, self._drain_requested)
            await self._shut_down(stop)
            for task in background:
                task.cancel()

    def _order(self, engine: int, order: Order) -> None:
        """Send an order; ignored for an engine that only an earlier run had."""
        if engine < len(self._engines):
            self._engines[engine].send(order)

    def _kv_memory_limit_bytes(self) -> int:
        measured = [engine.measured.kv_memory for engine in self._engines]
        return sum(each.memory_limit_bytes + each.disk_limit_bytes for each in measured)

    def report(self) -> WorkerReport:
        """Return the whole state, for heartbeats and health."""
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
            term=self._fence.term,
            uptime_s=time.monotonic() - self._started_at,
            tasks=len(asyncio.all_tasks()),
        )

    # Life cycle.

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
        logger.info("worker %s starts", self.id, extra={"worker": self.id})

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

    async def _shut_down(self, stop: StopSignal) -> None:
        """Shut down in this order: controllers stop sending requests; running requests may finish;
        the others are requeued; engines stop; only then `left` is published."""
        await self._change_state("draining")
        if not stop.immediate:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._drain_limit_s) as self._drain_timeout:
                    await self._scheduler.changes.wait_until(lambda: self._scheduler.idle)
        self._drain_timeout = None
        self._scheduler.requeue_all(ErrorDetails.of("draining", f"worker {self.id} shut down"))
        await self._publisher.drain(_FINAL_PUBLISH_S)
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        await asyncio.to_thread(self._sessions.close)
        await self._change_state("stopped")
        await self._announcer.publish_event("left")
        logger.info("worker %s left", self.id)

    def _on_drain(self, order: DrainWorker) -> None:
        """Request a drain; a later order replaces an earlier one."""
        self._drain_order = order
        self._drain_requested.request()
        if self._drain_timeout is not None and not self._drain_timeout.expired():
            self._drain_timeout.reschedule(asyncio.get_running_loop().time() + self._drain_limit_s)

    @property
    def _drain_limit_s(self) -> float:
        ordered = self._drain_order.deadline_ms if self._drain_order is not None else None
        return (self._settings.worker.drain_timeout_ms if ordered is None else ordered) / 1000

    def _on_configure(self, order: ConfigureWorker) -> ControlReply:
        if self._reconfiguration is None:
            raise RequestError("the settings of this worker cannot be changed", code="settings")
        if not order.dry_run:
            effect = self._reconfiguration.switch(order)
            return ControlReply(worker=self.id, boot_id=self.boot_id, ok=True, effect=effect)
        effect, differences = self._reconfiguration.preview(order)
        changes = [
            SettingChange(key=each.key, before=each.before, after=each.after)
            for each in differences
        ]
        return ControlReply(
            worker=self.id, boot_id=self.boot_id, ok=True, effect=effect, changes=changes
        )

    def _apply(self, settings: ClusterSettings) -> None:
        """Apply those of the settings that need no restart."""
        self._settings = settings
        logging.getLogger().setLevel(settings.logging.level.upper())
        self._sessions.configure(settings.worker.sessions)
        self._scheduler.configure(settings)
        self._pre_warming.configure(settings)

    async def _watch_sleep(self) -> None:
        if (power := this_machine()) is not None:
            await SleepHandler(
                power,
                busy=lambda: not self._scheduler.idle,
                before=self.fall_asleep,
                after=self.wake_up,
            ).run()

    async def fall_asleep(self) -> None:
        """Prepare for the sleep of the machine: accept no new requests, and requeue those that are
        here."""
        await self._change_sleep(True)
        message = f"the machine of worker {self.id} is about to sleep"
        self._scheduler.requeue_all(ErrorDetails.of("draining", message))
        await self._publisher.drain(_FINAL_PUBLISH_S)
        with contextlib.suppress(BusError):
            await self._bus.flush(timeout_s=_FINAL_PUBLISH_S)

    async def wake_up(self) -> None:
        """Accept requests again, after the machine has woken."""
        await self._change_sleep(False)

    async def _change_sleep(self, asleep: bool) -> None:
        if self._asleep != asleep:
            self._asleep = asleep
            if self._announcer.announced:
                await self._announcer.announce_state()

    async def _change_state(self, state: WorkerState) -> None:
        if self._state != state:
            self._state = state
            if state == "ready" and self._reconfiguration is not None:
                self._reconfiguration.on_ready()
            await self._announcer.announce_state()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            with self._isolation.of(None, "the scheduler's tick"):
                self._scheduler.tick()
            with self._isolation.of(None, "the sessions' tick"):
                self._sessions.tick()

    async def _guard_memory(self) -> None:
        while True:
            await asyncio.sleep(self._settings.worker.resource_limits.check_interval_ms / 1000)
            with self._isolation.of(None, "the memory guard"):
                self._scheduler.relieve_memory()

    # Engines.

    async def _on_fact(self, engine: EngineProcess, fact: Fact) -> None:
        if isinstance(fact, EngineStarted):
            logger.info("engine %d runs on %s", engine.index, fact.device)
            if self._state == "unhealthy":
                logger.info("worker %s has a running engine again and accepts requests", self.id)
                await self._change_state("ready")
        self._scheduler.on_fact(engine, fact)
        self._scheduler.changes.notify()
        await self._publisher.wait_for_capacity()

    async def _on_engine_lost(self, engine: EngineProcess, reason: str) -> None:
        message = f"the engine process of {self.id} ended ({reason})"
        with self._isolation.of(None, "the loss of an engine"):
            self._scheduler.on_engine_lost(engine, ErrorDetails.of("engine_crashed", message))
        self._scheduler.changes.notify()
        shutting_down = self._state in ("draining", "stopped")
        if not shutting_down and all(other.state == "failed" for other in self._engines):
            logger.error("worker %s accepts no requests until an engine runs again", self.id)
            await self._change_state("unhealthy")

    # Streams.

    async def _drop_reassigned(self, unsent: Iterable[ActiveRequest]) -> None:
        """Drop the requests that ended or migrated while this worker was unreachable."""
        candidates = {*unsent, *self._scheduler.requests()}
        for request in await find_reassigned(self._bus, self.id, candidates):
            logger.warning(
                "dropped: the request ended or migrated while this worker was unreachable",
                extra={"request_id": request.dispatch.request_id},
            )
            self._scheduler.drop(request)

    def _health(self) -> bytes:
        return encode(WorkerHealth(ready=self.state == "ready", worker=self.report()))
