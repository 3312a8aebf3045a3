"""Rolls cluster.yaml out, while this controller leads.

What is decided is kept in JetStream before it is done, so that the next leader goes on from there:
only what was measured of the phase that is under way is measured anew.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from controller.fleet.registry import Registry
from controller.leader.election import LeaderElection
from controller.rollout.policy import (
    RolloutProgress,
    SwitchVersion,
    begin,
    decide,
    on_trial,
    order_sent,
)
from controller.rollout.steps import plan_steps
from controller.rollout.store import RolloutStore
from controller.rollout.worker_metrics import WorkerMetrics
from shared import subjects
from shared.bus import Bus, BusMessage
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
from shared.messages.worker_report import WorkerReport
from shared.settings.changes import Effect, SettingDifference
from shared.settings.controller import RolloutSettings as RolloutSettings
from shared.settings.load import read_text
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

_FOLLOW_S = 1.0
_TICK_S = 0.25
_READ_S = 1.0
_ANSWER_S = 5.0
_TROUBLE_S = 1.0
_ASK_AGAIN_S = 10.0
_HEARD_WITHIN_S = 10.0
"""Whoever is there is heard in this time, also if it starts again just then."""
_ROLL_BACK_DRAIN_MS = 3000
"""A version that is no good is left soon; streams go on elsewhere."""

_AT_ONCE = {
    "canary": 0, "steps_percent": [100], "baseline_s": 0.0, "bake_s": 0.0,
}  # fmt: skip


class RolloutRunner:
    """
    Args:
        settings: how it is done where an order says nothing else.
        version: that this controller runs with.
        take_failovers_ms: as of `Requests`.
        on_stable: told each version that all are to run now, 0 for their own files; and its text.
        look: what a text would change in this controller, and what that takes; raises
            SettingsError where it is no good.

    Attributes:
        stable: the version that all run now, who are not part of a roll-out.
    """

    def __init__(
        self,
        settings: RolloutSettings,
        version: int,
        bus: Bus,
        controller: ControllerId,
        leadership: LeaderElection,
        registry: Registry,
        take_failovers_ms: Callable[[], Mapping[WorkerId, float]],
        on_stable: Callable[[int, str | None], None],
        look: Callable[[str], tuple[Effect | None, Sequence[SettingDifference]]],
    ) -> None:
        self.settings = settings
        self.stable = version
        self._bus = bus
        self._id = controller
        self._leadership = leadership
        self._registry = registry
        self._take_failovers_ms = take_failovers_ms
        self._on_stable = on_stable
        self._look = look
        self._store = RolloutStore(bus)
        self._state: RolloutState | None = None  # as we keep it while we lead
        self._listens_since = math.inf
        self._asked_at = -math.inf
        self._heard = False
        self._progress = RolloutProgress()
        self._texts: dict[int, str | None] = {0: None}
        self._read_at = 0.0
        self._turn = asyncio.Lock()
        self._tasks = Tasks()

    async def open(self) -> None:
        """Hear orders, and what the leader keeps."""
        await self._bus.subscribe(subjects.rollout("*"), self._on_order)
        await self._bus.subscribe(
            subjects.kept(subjects.ROLLOUT_BUCKET, subjects.ROLLOUT_KEY), self._on_kept
        )

    async def close(self) -> None:
        await self._tasks.end()

    async def run(self) -> None:
        """Go on with what is under way whenever this controller leads, until cancelled."""
        self._bus.on_reconnect.append(self._on_reconnect)
        self._listens_since = time.monotonic()
        said = ""
        while True:
            try:
                async with self._turn:
                    await self._tick()
                said = ""
            except BusError as error:
                self._state = None
                if not isinstance(error, WriteConflict) and error.message != said:
                    said = error.message
                    logger.warning("versions of cluster.yaml cannot be rolled out: %s", said)
                await asyncio.sleep(_TROUBLE_S)
            except Exception:  # requests are served all the same
                self._state = None
                logger.exception("versions of cluster.yaml cannot be rolled out")
                await asyncio.sleep(_ASK_AGAIN_S)
            await asyncio.sleep(_TICK_S if self._leadership.leads else _FOLLOW_S)

    async def _on_reconnect(self) -> None:
        """What was kept meanwhile was not heard."""
        self._heard = False

    async def _tick(self) -> None:
        if not self._leadership.leads:
            self._state = None
            if not self._heard and time.monotonic() - self._asked_at > _ASK_AGAIN_S:
                self._asked_at = time.monotonic()
                await self._follow(await self._store.state())
            return
        state = await self._led()
        now = time.time()
        reports = {view.id: view.report for view in self._registry.workers}
        self._read(state, reports, now)
        listens_s = time.monotonic() - self._listens_since
        self._progress.heard_all = listens_s > _HEARD_WITHIN_S
        decision = decide(state, reports, self._progress, now)
        if decision.state is not state:
            await self._keep(decision.state)
        for order in decision.orders:
            order_sent(decision.state, order, reports[order.worker], self._progress, now)
            self._tasks.start(self._tell(order, decision.state))

    async def _led(self) -> RolloutState:
        """The state, read once in each time that we lead."""
        if self._state is None:
            self._state = await self._store.state()
            self._progress = RolloutProgress()
            await self._follow(self._state)
        return self._state

    async def _keep(self, state: RolloutState) -> None:
        if not self._leadership.leads:
            raise WriteConflict("this controller leads no more")
        before = self._state.rollout if self._state is not None else None
        await self._store.keep_state(state)
        self._state = state
        rollout = state.rollout
        if rollout is not None and (before is None or before.phase != rollout.phase):
            reason = f": {rollout.reason}" if rollout.reason else ""
            logger.info("version %d of cluster.yaml: %s%s", rollout.version, rollout.phase, reason)

    def _read(self, state: RolloutState, reports: dict[WorkerId, WorkerReport], now: float) -> None:
        rollout = state.rollout
        if rollout is None or rollout.phase not in ("measuring", "baking"):
            return
        if self._progress.readings is None:
            self._progress.readings = WorkerMetrics(now)
            self._take_failovers_ms()  # of before
        elif now - self._read_at < _READ_S:
            return
        self._read_at = now
        breakers = self._registry.breakers(time.monotonic())
        self._progress.readings.add(
            reports.values(),
            now,
            open_breakers=breakers,
            failovers_ms=self._take_failovers_ms(),
        )

    async def _tell(self, order: SwitchVersion, state: RolloutState) -> None:
        """Have a worker go over to a version; what it says is noted."""
        back = state.rollout is not None and state.rollout.phase == "rolling_back"
        refusal = None
        try:
            text = await self._text(order.version)
            message = ConfigureWorker(
                version=order.version,
                text=text,
                deadline_ms=_ROLL_BACK_DRAIN_MS if back else None,
            )
            subject = subjects.worker_control(order.worker, message.verb)
            answer = await self._bus.request(subject, encode(message), timeout_s=_ANSWER_S)
            reply = decode(ControlReply, answer.payload)
            logger.info(
                "worker %s goes over to version %d: %s",
                order.worker, order.version, reply.effect if reply.ok else reply.message,
            )  # fmt: skip
            if not reply.ok and reply.code != "draining":
                refusal = reply.message or reply.code
        except RequestError as error:
            refusal = error.message
        except (BusError, DecodeError) as error:
            logger.warning("worker %s was told of a version: %s", order.worker, error.message)
        if refusal is not None and (under_way := self._progress.under_way.get(order.worker)):
            under_way.refusal = refusal

    async def _text(self, number: int) -> str | None:
        if number not in self._texts:
            version = await self._store.version(number)
            if version is None:
                raise RequestError(f"version {number} is not kept any more", code="settings")
            self._texts = {0: None, **dict(list(self._texts.items())[-8:]), number: version.text}
        return self._texts[number]

    # What every controller hears.

    async def _on_kept(self, message: BusMessage) -> None:
        try:
            state = decode(RolloutState, message.payload)
        except DecodeError:
            return
        self._tasks.start(self._follow(state))

    async def _follow(self, state: RolloutState) -> None:
        self._heard = True
        self._registry.on_trial = on_trial(state)
        if state.stable == self.stable:
            return
        try:
            text = await self._text(state.stable)
        except ClusterError as error:
            logger.error("version %d is not followed: %s", state.stable, error.message)
            return
        self.stable = state.stable
        self._on_stable(state.stable, text)

    # Orders.

    async def _on_order(self, message: BusMessage) -> None:
        if message.reply and self._leadership.leads:
            self._tasks.start(self._answer(message))

    async def _answer(self, message: BusMessage) -> None:
        kind = ROLLOUT_ORDERS.get(message.subject.rsplit(".", 1)[1])
        try:
            if kind is None:
                raise InvalidRequest(f"orders are {', '.join(ROLLOUT_ORDERS)}")
            try:
                order = kind.model_validate_json(message.payload or b"{}")
            except ValueError as error:
                raise InvalidRequest(str(error)) from None
            async with self._turn:
                reply = await self._carry_out(order)
        except ClusterError as error:
            reply = RolloutReply(
                controller=self._id, ok=False, code=error.code, message=error.message
            )
        await self._bus.publish(message.reply, encode(reply))

    async def _carry_out(self, order: RolloutOrder) -> RolloutReply:
        if not self.settings.enabled and not isinstance(order, ShowRollout | PlanRollout):
            raise RequestError("controller.rollout.enabled is false", code="settings")
        state = await self._led()
        version = None
        match order:
            case ShowRollout():
                if order.version is not None:
                    version = await self._store.version(order.version)
                    if version is None:
                        raise InvalidRequest(f"there is no version {order.version}")
            case PlanRollout():
                effect, changes = self._look(order.text)
                told = [SettingChange(key=c.key, before=c.before, after=c.after) for c in changes]
                return RolloutReply(
                    controller=self._id, ok=True, state=state, effect=effect, changes=told
                )
            case ApplyRollout():
                await self._apply(state, order)
            case PauseRollout():
                await self._keep(_changed(state, paused=True))
            case ResumeRollout():
                await self._keep(_changed(state, paused=False))
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
        # Also where JetStream lost what it kept: a number stands for one text.
        known = [view.report.config_version for view in self._registry.workers]
        number = max(state.last_version, *known) + 1
        await self._store.keep_version(
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
        await self._keep(begin(state, rollout))

    async def _roll_back(self, state: RolloutState, order: RollBack) -> None:
        rollout, now = state.rollout, time.time()
        if rollout is not None and not rollout.ended:
            if order.version not in (None, rollout.before):
                raise RequestError(
                    f"version {rollout.version} is under way; it goes back to {rollout.before}",
                    code="settings",
                )
            reason = f"ordered by {order.by or 'somebody'}"
            await self._keep(_changed(state, phase="rolling_back", since=now, reason=reason))
            return
        target = order.version
        if target is None:
            done = [one for one in (rollout, *state.history) if one and one.phase == "done"]
            if not done:
                raise InvalidRequest("nothing was rolled out")
            target = done[0].before
        if target == state.stable:
            raise InvalidRequest(f"version {target} is what runs")
        await self._text(target)  # it must be there
        workers = [view.id for view in self._registry.workers]
        settings = self.settings.model_copy(update=_AT_ONCE)
        again = Rollout(
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
        await self._keep(begin(state, again))


def _changed(state: RolloutState, **fields: object) -> RolloutState:
    """With other fields of the roll-out that is under way."""
    if state.rollout is None or state.rollout.ended:
        raise InvalidRequest("nothing is being rolled out")
    return state.model_copy(update={"rollout": state.rollout.model_copy(update=fields)})
