"""Rolls cluster.yaml out, while this controller leads.

Each decision is stored in JetStream before it is carried out, so that the next leader continues
from there. Only the measurements of the current phase start again.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from controller.fleet.registry import NodeRegistry
from controller.leader.election import LeaderElection
from controller.rollout.policy import (
    SwitchConfigVersion,
    VolatileRolloutState,
    change_rollout,
    decide,
    on_trial,
    plan_steps,
    record_order,
    start_rollout,
)
from controller.rollout.store import ConfigVersionStore
from controller.rollout.worker_metrics import PeriodMetrics
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import decode, encode
from shared.errors import (
    BusError,
    ClusterError,
    DecodeError,
    InvalidRequest,
    RequestError,
    Unavailable,
    WriteConflict,
)
from shared.ids import ControllerId, WorkerId
from shared.messages.control import ConfigureWorker, ControlReply, SettingChange
from shared.messages.rollout import (
    ROLLOUT_ORDERS,
    ApplyRollout,
    PauseRollout,
    PlanRollout,
    ResumeRollout,
    RollBack,
    Rollout,
    RolloutOrder,
    RolloutReply,
    RolloutState,
    ShowRollout,
    Version,
)
from shared.messages.sender import decode_from
from shared.messages.worker_report import WorkerReport
from shared.settings.changes import Effect, SettingDifference
from shared.settings.controller import RolloutSettings as RolloutSettings
from shared.settings.load import read_text
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

_STANDBY_TICK_S = 1.0
_LEADER_TICK_S = 0.25
_MEASURE_S = 1.0
_ANSWER_S = 5.0
_ERROR_DELAY_S = 1.0
_RETRY_S = 10.0
_ALL_REPORT_S = 10.0
"""Every worker that is alive reports within this time, even if it is just restarting."""
_ROLL_BACK_DRAIN_MS = 3000
"""Workers leave a failed version soon; their streams migrate."""

_AT_ONCE = {
    "canary": 0, "steps_percent": [100], "baseline_s": 0.0, "bake_s": 0.0,
}  # fmt: skip


class RolloutRunner:
    """
    Args:
        settings: defaults for orders that do not set their own.
        version: the version that this controller runs with.
        take_failovers_ms: `RequestStateMachine.take_failovers_ms`.
        on_stable: called with the version that all must run now (0: their own files) and its text.
        plan: returns what a text would change in this controller, and what the change takes; raises
            SettingsError if the text is invalid.

    Attributes:
        stable: the version that all workers outside the current roll-out run.
    """

    def __init__(
        self,
        settings: RolloutSettings,
        version: int,
        bus: Bus,
        controller: ControllerId,
        leadership: LeaderElection,
        registry: NodeRegistry,
        take_failovers_ms: Callable[[], Mapping[WorkerId, float]],
        on_stable: Callable[[int, str | None], None],
        plan: Callable[[str], tuple[Effect | None, Sequence[SettingDifference]]],
    ) -> None:
        self.settings = settings
        self.stable = version
        self._bus = bus
        self._id = controller
        self._leadership = leadership
        self._registry = registry
        self._take_failovers_ms = take_failovers_ms
        self._on_stable = on_stable
        self._plan = plan
        self._store = ConfigVersionStore(bus)
        self._state: RolloutState | None = None  # as this leader stored it
        self._subscribed_at = math.inf
        self._last_read_at = -math.inf
        self._has_state = False
        self._progress = VolatileRolloutState()
        self._yaml: dict[int, str | None] = {0: None}
        self._measured_at = 0.0
        self._lock = asyncio.Lock()
        self._tasks = Tasks()

    async def open(self) -> None:
        """Subscribe to orders, and to the state that the leader stores."""
        await self._bus.subscribe(subjects.rollout("*"), self._on_order)
        await self._bus.subscribe(
            subjects.key_value(subjects.ROLLOUT_BUCKET, subjects.ROLLOUT_KEY), self._on_state
        )

    async def close(self) -> None:
        await self._tasks.end()

    async def run(self) -> None:
        """Continue the current roll-out whenever this controller leads, until cancelled."""
        self._bus.on_reconnect.append(self._on_reconnect)
        self._subscribed_at = time.monotonic()
        logged = ""
        while True:
            try:
                async with self._lock:
                    await self._tick()
                logged = ""
            except BusError as error:
                self._state = None
                if not isinstance(error, WriteConflict) and error.message != logged:
                    logged = error.message
                    logger.warning("versions of cluster.yaml cannot be rolled out: %s", logged)
                await asyncio.sleep(_ERROR_DELAY_S)
            except Exception:  # this controller still serves requests
                self._state = None
                logger.exception("versions of cluster.yaml cannot be rolled out")
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_LEADER_TICK_S if self._leadership.leads else _STANDBY_TICK_S)

    async def _on_reconnect(self) -> None:
        """Read the state again: a change may have been missed."""
        self._has_state = False

    async def _tick(self) -> None:
        if not self._leadership.leads:
            self._state = None
            if not self._has_state and time.monotonic() - self._last_read_at > _RETRY_S:
                self._last_read_at = time.monotonic()
                await self._follow(await self._store.state())
            return
        state = await self._leader_state()
        now = time.time()
        reports = {view.id: view.report for view in self._registry.workers}
        self._measure(state, reports, now)
        subscribed_s = time.monotonic() - self._subscribed_at
        self._progress.all_reported = subscribed_s > _ALL_REPORT_S
        decision = decide(state, reports, self._progress, now)
        if decision.state is not state:
            await self._save(decision.state)
        for order in decision.orders:
            record_order(decision.state, order, reports[order.worker], self._progress, now)
            self._tasks.start(self._send_order(order, decision.state))

    async def _leader_state(self) -> RolloutState:
        """Return the state; read from JetStream once per term, and again after an error."""
        if self._state is None:
            self._state = await self._store.state()
            self._progress = VolatileRolloutState()
            await self._follow(self._state)
        return self._state

    async def _save(self, state: RolloutState) -> None:
        if not self._leadership.leads:
            raise WriteConflict("this controller no longer leads")
        before = self._state.rollout if self._state is not None else None
        await self._store.save_state(state)
        self._state = state
        rollout = state.rollout
        if rollout is not None and (before is None or before.phase != rollout.phase):
            reason = f": {rollout.reason}" if rollout.reason else ""
            logger.info("version %d of cluster.yaml: %s%s", rollout.version, rollout.phase, reason)

    def _measure(
        self, state: RolloutState, reports: dict[WorkerId, WorkerReport], now: float
    ) -> None:
        rollout = state.rollout
        if rollout is None or rollout.phase not in ("measuring", "baking"):
            return
        if self._progress.metrics is None:
            self._progress.metrics = PeriodMetrics(now)
            self._take_failovers_ms()  # drop those of the time before
        elif now - self._measured_at < _MEASURE_S:
            return
        self._measured_at = now
        breakers = self._registry.tripped_breakers(time.monotonic())
        self._progress.metrics.add(
            reports.values(),
            now,
            open_breakers=breakers,
            failovers_ms=self._take_failovers_ms(),
        )

    async def _send_order(self, order: SwitchConfigVersion, state: RolloutState) -> None:
        """Order a worker to switch to a version, and record a rejection."""
        is_rollback = state.rollout is not None and state.rollout.phase == "rolling_back"
        rejection = None
        try:
            text = await self._read_yaml(order.version)
            message = ConfigureWorker(
                version=order.version,
                text=text,
                deadline_ms=_ROLL_BACK_DRAIN_MS if is_rollback else None,
            )
            subject = subjects.worker_control(order.worker, message.verb)
            answer = await self._bus.request(subject, encode(message), timeout_s=_ANSWER_S)
            reply = decode_from(order.worker, ControlReply, answer.payload)
            logger.info(
                "worker %s switches to version %d: %s",
                order.worker, order.version, reply.effect if reply.ok else reply.message,
            )  # fmt: skip
            if not reply.ok and reply.code != "draining":
                rejection = reply.message or reply.code
        except RequestError as error:
            rejection = error.message
        except (BusError, DecodeError) as error:
            logger.warning(
                "worker %s did not answer the order for version %d: %s",
                order.worker, order.version, error.message,
            )  # fmt: skip
        if rejection is not None and (pending := self._progress.pending.get(order.worker)):
            pending.rejection = rejection

    async def _read_yaml(self, number: int) -> str | None:
        if number not in self._yaml:
            version = await self._store.version(number)
            if version is None:
                raise RequestError(f"version {number} is no longer stored", code="settings")
            self._yaml = {0: None, **dict(list(self._yaml.items())[-8:]), number: version.text}
        return self._yaml[number]

    # The state that every controller follows.

    async def _on_state(self, message: IncomingMessage) -> None:
        try:
            state = decode(RolloutState, message.payload)
        except DecodeError:
            return
        self._tasks.start(self._follow(state))

    async def _follow(self, state: RolloutState) -> None:
        self._has_state = True
        self._registry.on_trial = on_trial(state)
        if state.stable == self.stable:
            return
        try:
            text = await self._read_yaml(state.stable)
        except ClusterError as error:
            logger.error(
                "version %d of cluster.yaml was not applied: %s", state.stable, error.message
            )
            return
        self.stable = state.stable
        self._on_stable(state.stable, text)

    # Orders.

    async def _on_order(self, message: IncomingMessage) -> None:
        if message.reply and self._leadership.leads:
            self._tasks.start(self._answer(message))

    async def _answer(self, message: IncomingMessage) -> None:
        kind = ROLLOUT_ORDERS.get(message.subject.rsplit(".", 1)[1])
        try:
            if kind is None:
                raise InvalidRequest(f"orders are {', '.join(ROLLOUT_ORDERS)}")
            try:
                order = kind.model_validate_json(message.payload or b"{}")
            except ValueError as error:
                raise InvalidRequest(str(error)) from None
            async with self._lock:
                reply = await self._carry_out(order)
        except ClusterError as error:
            reply = RolloutReply(
                controller=self._id, ok=False, code=error.code, message=error.message
            )
        await self._bus.publish(message.reply, encode(reply))

    async def _carry_out(self, order: RolloutOrder) -> RolloutReply:
        if not self.settings.enabled and not isinstance(order, ShowRollout | PlanRollout):
            raise RequestError("controller.rollout.enabled is false", code="settings")
        state = await self._leader_state()
        version = None
        match order:
            case ShowRollout():
                if order.version is not None:
                    version = await self._store.version(order.version)
                    if version is None:
                        raise InvalidRequest(f"there is no version {order.version}")
            case PlanRollout():
                effect, changes = self._plan(order.text)
                listed = [SettingChange(key=c.key, before=c.before, after=c.after) for c in changes]
                return RolloutReply(
                    controller=self._id, ok=True, state=state, effect=effect, changes=listed
                )
            case ApplyRollout():
                await self._apply(state, order)
            case PauseRollout():
                await self._save(change_rollout(state, paused=True))
            case ResumeRollout():
                await self._save(change_rollout(state, paused=False))
            case RollBack():
                await self._roll_back(state, order)
        return RolloutReply(controller=self._id, ok=True, state=self._state, version=version)

    async def _apply(self, state: RolloutState, order: ApplyRollout) -> None:
        if state.rollout is not None and not state.rollout.ended:
            raise RequestError(
                f"version {state.rollout.version} is being rolled out: wait, or roll it back",
                code="settings",
            )
        read_text(order.text, "cluster.yaml")
        workers = [view.id for view in self._registry.workers]
        if not workers:
            raise Unavailable("there is no worker to roll it out to")
        settings = order.settings or self.settings
        steps = plan_steps(workers, settings, order.canaries)
        now = time.time()
        # A number must stand for one text, even if JetStream has lost its state.
        known = [view.report.config_version for view in self._registry.workers]
        number = max(state.last_version, *known) + 1
        await self._store.save_version(
            Version(version=number, text=order.text, created_at=now, by=order.by, note=order.note)
        )
        rollout = Rollout(
            version=number,
            before=state.stable,
            phase="measuring",
            steps=steps,
            began_at=now,
            since=now,
            by=order.by,
            note=order.note,
            settings=settings,
        )
        await self._save(start_rollout(state, rollout))

    async def _roll_back(self, state: RolloutState, order: RollBack) -> None:
        rollout, now = state.rollout, time.time()
        if rollout is not None and not rollout.ended:
            if order.version not in (None, rollout.before):
                raise RequestError(
                    f"version {rollout.version} is being rolled out; "
                    f"it can only be rolled back to {rollout.before}",
                    code="settings",
                )
            reason = f"ordered by {order.by or 'somebody'}"
            await self._save(change_rollout(state, phase="rolling_back", since=now, reason=reason))
            return
        target = order.version
        if target is None:
            done = [past for past in (rollout, *state.history) if past and past.phase == "done"]
            if not done:
                raise InvalidRequest("nothing was rolled out")
            target = done[0].before
        if target == state.stable:
            raise InvalidRequest(f"version {target} is already running")
        await self._read_yaml(target)  # raises if it is no longer stored
        workers = [view.id for view in self._registry.workers]
        settings = self.settings.model_copy(update=_AT_ONCE)
        rollback = Rollout(
            version=target,
            before=state.stable,
            phase="measuring",
            steps=plan_steps(workers, settings),
            began_at=now,
            since=now,
            by=order.by,
            note=order.note or f"back to version {target}",
            settings=settings,
        )
        await self._save(start_rollout(state, rollback))
