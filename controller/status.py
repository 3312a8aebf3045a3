"""The status of a controller: its report, its events and heartbeats, and its answers to health
queries."""

import asyncio
import logging
import time
from collections.abc import Callable

from controller.fleet.registry import NodeRegistry
from controller.leader.election import LeaderElection
from controller.lifecycle.machine import RequestStateMachine
from controller.requests.metrics import ControllerMetrics
from controller.rollout.runner import RolloutRunner
from shared import subjects
from shared.bus import Bus
from shared.codec import encode
from shared.errors import BusError
from shared.ids import BootId, ControllerId, ModelId, SkillName
from shared.messages.controller_report import ControllerReport, ControllerState
from shared.messages.events import ControllerEvent, EventType
from shared.messages.health import ClusterHealth, ControllerHealth, UnclaimedWorker
from shared.messages.health import LeaderInfo as LeaderInfo
from shared.refused_messages import RefusedMessages
from shared.version import VERSION

logger = logging.getLogger(__name__)


class ControllerReporter:
    """
    Args:
        machine: returns the request machine while this controller leads, else None.

    Attributes:
        needs_restart: some settings take effect only after a restart.
        skills: of the current settings.
    """

    def __init__(
        self,
        bus: Bus,
        controller: ControllerId,
        boot_id: BootId,
        registry: NodeRegistry,
        refused: RefusedMessages,
        metrics: ControllerMetrics,
        leadership: LeaderElection,
        rollout_runner: RolloutRunner,
        machine: Callable[[], RequestStateMachine | None],
        *,
        skills: dict[SkillName, list[ModelId]],
        heartbeat_interval_s: float,
    ) -> None:
        self.state: ControllerState = "starting"
        self.needs_restart = False
        self.skills = skills
        self._bus = bus
        self._id = controller
        self._boot_id = boot_id
        self._registry = registry
        self._refused = refused
        self._metrics = metrics
        self._leadership = leadership
        self._rollout_runner = rollout_runner
        self._machine = machine
        self._heartbeat_interval_s = heartbeat_interval_s
        self._started_at = time.monotonic()

    async def run(self) -> None:
        """Publish heartbeats until cancelled."""
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            if self.state != "starting":
                await self.publish("heartbeat")

    async def change_state(self, state: ControllerState) -> None:
        joined = self.state == "starting"
        self.state = state
        await self.publish("joined" if joined else "state_changed")

    async def publish(self, kind: EventType) -> None:
        """Publish an event with the current report; does nothing while NATS is unavailable."""
        event = ControllerEvent(type=kind, controller=self.report())
        try:
            await self._bus.publish(subjects.controller_event(self._id), encode(event))
        except BusError as error:
            logger.debug("event %s was not sent: %s", kind, error.message)

    def report(self) -> ControllerReport:
        metrics, machine = self._metrics, self._machine()
        return ControllerReport(
            id=self._id,
            boot_id=self._boot_id,
            version=VERSION,
            state=self.state,
            active_requests=machine.active if machine is not None else 0,
            accepted_requests=metrics.accepted,
            completed_requests=metrics.completed,
            rejected_requests=metrics.rejected,
            failed_requests=metrics.failed,
            waiting_requests=machine.waiting if machine is not None else 0,
            retries=metrics.retries,
            migrations=metrics.migrations,
            adoptions=metrics.adoptions,
            sticky_turns=metrics.turns["home"],
            moved_turns=metrics.turns["moved"],
            breakers=self._registry.tripped_breakers(time.monotonic()),
            workers=len(self._registry.workers),
            leader=self._leadership.leads,
            term=self._leadership.term,
            leader_problem=self._leadership.problem,
            config_version=self._rollout_runner.stable,
            needs_restart=self.needs_restart,
            uptime_s=round(time.monotonic() - self._started_at, 1),
            tasks=len(asyncio.all_tasks()),
        )

    def controller_health(self) -> bytes:
        """Return the encoded answer to a health query for this controller."""
        return encode(ControllerHealth(ready=self.state == "ready", controller=self.report()))

    def cluster_health(self) -> bytes:
        """Return the encoded answer to a health query for the cluster."""
        views = self._registry.workers
        ready = sum(view.report.state == "ready" and view.refused_term is None for view in views)
        status = "unavailable" if not ready else "ready" if ready == len(views) else "degraded"
        leader = LeaderInfo(id=self._id, term=self._leadership.term)
        return encode(
            ClusterHealth(
                status=status,
                leader=leader if self._leadership.leads else None,
                skills=self.skills,
                controllers=sorted(
                    [self.report(), *self._registry.controllers], key=lambda c: c.id
                ),
                workers=[view.report for view in views],
                ignored=self._refused.ignored(),
                unclaimed=[
                    UnclaimedWorker(id=view.id, term=view.refused_term)
                    for view in views
                    if view.refused_term is not None
                ],
            )
        )
