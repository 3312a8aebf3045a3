"""A worker whose engine is simulated; all else is as in `worker.agent.agent`."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Literal

from shared import subjects
from shared.codec import encode
from shared.errors import BusError
from shared.ids import BootId, WorkerId
from shared.messages.base import MAX_TERM
from shared.messages.control import ControlReply
from shared.messages.events import EventType, WorkerEvent
from shared.messages.stream import ErrorDetails
from shared.messages.worker_report import MemoryStatus, WorkerReport, WorkerState
from shared.settings import ClusterSettings
from tests.simulation.bus import SimulatedBus
from tests.simulation.engine import SimulatedEngine
from tests.simulation.network import Network
from tests.worker.sessions.stores import new_store
from worker.agent.leader_fence import LeaderFence, StaleTerm
from worker.agent.request_handler import DISPATCHES_PER_MESSAGE, AgentMessageHandler
from worker.requests.active_request import ActiveRequest
from worker.requests.isolation import FailureIsolation
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.scheduler import RequestScheduler
from worker.streams.ownership import find_reassigned
from worker.streams.publish_lease import PublishLease
from worker.streams.publisher import StreamPublisher

Mood = Literal["willing", "short of memory", "without its model", "without an engine"]

_TICK_S = 0.25
_DRAIN_S = 0.5


class LyingFence(LeaderFence):
    """
    Attributes:
        lie: the term in which the worker says that it was claimed; None for the truth.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lie: int | None = None

    def check(self, term: int | None) -> None:
        if term is not None and self.lie is not None and self.lie <= MAX_TERM:
            raise StaleTerm("another one leads", self.lie)
        super().check(term)


class SimulatedWorker:
    """One boot of a worker."""

    def __init__(
        self, network: Network, settings: ClusterSettings, name: str, boot: int, server: str
    ) -> None:
        self.id = WorkerId(name)
        self.boot_id = BootId(f"b{boot}")
        self.boot = boot
        self.state: WorkerState = "starting"
        self.alive = True
        self.bus = SimulatedBus(network, f"{name}.{self.boot_id}", server=server)
        self._settings = settings
        failover = settings.controller.failover
        self._interval_s = failover.heartbeat_interval_ms / 1000
        self._lease = PublishLease(self._interval_s * failover.missed_heartbeats)
        isolation = FailureIsolation()
        self._publisher = StreamPublisher(
            self.bus,
            self.id,
            self.boot_id,
            self._lease,
            check_streams=self._drop_lost_streams,
            on_missed=lambda inbox: self.scheduler.on_missed(inbox),
            isolation=isolation,
        )
        self.engine = SimulatedEngine(self.bus.process.context)
        store = new_store()
        kept = LocalPrefixIndex(self.id, self.boot_id, store)
        self.scheduler = RequestScheduler(
            self.id, settings, [self.engine], self._publisher.put, store, kept, isolation
        )
        self.engine.tell(self.scheduler)
        for model in self.scheduler.models.catalogue:
            model.state, model.used_at = "warm", 0.0
            model.placed.add(self.engine.index)
            model.engines.add(self.engine.index)
        self.claim = LyingFence()
        self._request_handler = AgentMessageHandler(
            self.bus,
            self.id,
            self.boot_id,
            self.scheduler,
            self.claim,
            strict=False,
            state=lambda: self.state,
            asleep=lambda: False,
            drain=lambda order: self.drain(),
            configure=lambda order: ControlReply(worker=self.id, ok=False),
        )
        self._announced = False

    @property
    def requests(self) -> int:
        """How many wait or run here."""
        return len(list(self.scheduler.requests()))

    async def start(self) -> None:
        """Listen; nobody is told."""
        await self._request_handler.open()
        self._lease.restore(self.bus.connections)
        for life in (self._publisher.run(), self._heartbeat(), self._tick()):
            self.bus.process.start(life)

    async def announce(self) -> None:
        """Tell the controllers that it is here and ready."""
        if self.alive:
            await self._change_state("ready")

    def set_mood(self, mood: Mood) -> None:
        """What it says to those who want to be served."""
        self.scheduler.guard.pressure = "hard" if mood == "short of memory" else "none"
        for model in self.scheduler.models.catalogue:
            model.state = "failed" if mood == "without its model" else "warm"
        if self.state in ("ready", "unhealthy"):
            self.state = "unhealthy" if mood == "without an engine" else "ready"

    def crash_engine(self) -> None:
        """Another one is there at once."""
        self.engine.lose_all()
        error = ErrorDetails.of("engine_crashed", f"the engine process of {self.id} ended")
        self.scheduler.requeue_all(error, engine=self.engine.index)

    def drain(self) -> None:
        """Leave in good order."""
        if self.alive and self.state != "draining":
            self.bus.spawn(self._leave())

    def die(self) -> set[str]:
        """Be gone without a word; returns the inboxes that were to hear something again, and
        not for the first time: nobody else knows of that."""
        self.alive = False
        unsaid = [one for one in self._publisher._backlog if not one.events]
        self.engine.lose_all()
        self.bus.die()
        return {
            inbox
            for one in unsaid
            for client_message in one.client_messages
            for inbox in client_message.inboxes
        }

    async def _leave(self) -> None:
        await self._change_state("draining")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self.scheduler.changes.wait_until(lambda: self.scheduler.idle)
        error = ErrorDetails.of("draining", f"worker {self.id} shut down")
        self.scheduler.requeue_all(error)
        await self._publisher.drain(5)
        await self._change_state("stopped")
        await self._say("left")
        self.die()

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            sent_at, connection = self._lease.now(), self.bus.connections
            if self._announced:
                await self._say("heartbeat")
            with contextlib.suppress(BusError):
                await self.bus.flush(timeout_s=self._interval_s)
                self._lease.renew(sent_at, connection)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self.requests:  # else there is nothing to do
                self.scheduler.tick()

    async def _change_state(self, state: WorkerState) -> None:
        self.state = state
        await self._say("state_changed" if self._announced else "joined")
        self._announced = True

    async def _say(self, kind: EventType) -> None:
        event = WorkerEvent(type=kind, worker=self.report())
        await self.bus.publish(subjects.worker_event(self.id), encode(event))

    def report(self) -> WorkerReport:
        worker = self._settings.worker
        return WorkerReport(
            id=self.id,
            boot_id=self.boot_id,
            version="0.1.0",
            state=self.state,
            active_requests=self.scheduler.running,
            queued_requests=len(self.scheduler.admission),
            max_batch_size=worker.continuous_batching.max_batch_size,
            max_queue_depth=worker.request_queue.max_depth,
            dispatches_per_message=DISPATCHES_PER_MESSAGE,
            queue=self.scheduler.admission.status(),
            models=self.scheduler.model_statuses(),
            term=self.claim.term,
            memory=MemoryStatus(pressure=self.scheduler.guard.pressure),
        )

    async def _drop_lost_streams(self, unsent: Iterable[ActiveRequest]) -> None:
        asked = {*unsent, *self.scheduler.requests()}
        for request in await find_reassigned(self.bus, self.id, asked):
            self.scheduler.drop(request)
