"""What is to be done next about a roll-out: decided, not done. Plain values: no clock, no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.rollout.gates import find_fault
from controller.rollout.worker_metrics import WorkerMetrics, error_share
from shared.ids import BootId, ModelId, WorkerId
from shared.messages.rollout import MOST_KEPT, Baseline, Phase, Rollout, RolloutState
from shared.messages.worker_report import WorkerReport

_SETTLED_S = 1.0
"""A worker that went over to a version tells so with a heartbeat."""
_AGAIN_S = 10.0
"""A worker that is not part of a roll-out and did not take its version is asked again then."""


@dataclass(frozen=True, slots=True)
class SwitchVersion:
    """A worker is to go over to a version."""

    worker: WorkerId
    version: int


@dataclass(slots=True)
class PendingSwitch:
    """A worker was told to go over to a version.

    Attributes:
        boot_id: that it had then.
        failed: the models that it could not load then already.
        refusal: what it said to that, where it did not take it.
    """

    version: int
    since: float
    boot_id: BootId
    failed: frozenset[ModelId]
    refusal: str | None = None


@dataclass(slots=True)
class RolloutProgress:
    """What the leader alone knows, and another one finds out anew.

    Attributes:
        heard_all: whoever is there has been heard; who has not is gone.
        readings: of the phase that is under way, if it needs any.
    """

    heard_all: bool = True
    under_way: dict[WorkerId, PendingSwitch] = field(default_factory=dict)
    readings: WorkerMetrics | None = None


@dataclass(frozen=True, slots=True)
class RolloutDecision:
    """The state from now on, and what to tell workers once it is kept."""

    state: RolloutState
    orders: Sequence[SwitchVersion] = ()


def expected_version(state: RolloutState, worker: WorkerId) -> int:
    """What a worker is to run now."""
    rollout = state.rollout
    if rollout is None or rollout.ended:
        return state.stable
    return rollout.version if worker in rollout.reached else rollout.before


def on_trial(state: RolloutState) -> frozenset[WorkerId]:
    """The workers that run a version that has not proved itself there."""
    rollout = state.rollout
    if rollout is None or not rollout.steps:
        return frozenset()
    if rollout.phase == "rolling_back":  # they still run what is no good, for a moment
        return frozenset(rollout.given)
    if rollout.phase in ("applying", "baking"):
        return frozenset(rollout.steps[rollout.step])
    return frozenset()


def decide(
    state: RolloutState,
    reports: Mapping[WorkerId, WorkerReport],
    progress: RolloutProgress,
    now: float,
) -> RolloutDecision:
    """Args:
    reports: of the workers that are there.
    progress: changed: what came to its end is forgotten.
    now: seconds since 1970.
    """
    _forget_done(state, reports, progress, now)
    rollout = state.rollout
    if rollout is not None and not rollout.ended:
        rollout = _advanced(rollout, reports, progress, now)
        if rollout is not state.rollout:
            progress.readings = None
            state = _with(state, rollout)
    at_once = 1
    if rollout is not None and rollout.phase == "rolling_back":
        at_once = max(1, len(reports) // 2)
    paused = rollout is not None and rollout.paused and rollout.phase != "rolling_back"
    if paused or (rollout is not None and rollout.phase == "measuring"):
        return RolloutDecision(state)
    return RolloutDecision(state, _orders(state, reports, progress, at_once))


def order_sent(
    state: RolloutState,
    order: SwitchVersion,
    report: WorkerReport,
    progress: RolloutProgress,
    now: float,
) -> None:
    """An order is being told."""
    progress.under_way[order.worker] = PendingSwitch(
        order.version, now, report.boot_id, frozenset(_failed(report))
    )


def _advanced(
    rollout: Rollout,
    reports: Mapping[WorkerId, WorkerReport],
    progress: RolloutProgress,
    now: float,
) -> Rollout:
    """One phase further, where it is time."""
    settings = rollout.settings
    match rollout.phase:
        case "measuring":
            if rollout.paused or progress.readings is None:
                return rollout
            if now - progress.readings.began_at >= settings.baseline_s:
                baseline = Baseline(
                    error_share=error_share(progress.readings.counts()),
                    speeds=progress.readings.speeds(),
                )
                return _in(rollout, "applying", now, baseline=baseline)
        case "applying":
            if (fault := _find_failed(rollout, reports, progress, now)) is not None:
                return _in(rollout, "rolling_back", now, reason=fault)
            members = [reports[worker] for worker in rollout.reached if worker in reports]
            waiting = any(worker in progress.under_way for worker in rollout.reached)
            if waiting or _unheard(rollout, reports, progress):
                return rollout
            if all(is_healthy_on(report, rollout.version) for report in members):
                return _in(rollout, "baking", now)
        case "baking":
            if progress.readings is None:
                return rollout
            over = now - progress.readings.began_at >= settings.bake_s
            fault = find_fault(
                settings.gates,
                rollout.baseline or Baseline(),
                progress.readings,
                rollout.reached,
                at=now,
                whole=over,
            )
            if fault is not None:
                return _in(rollout, "rolling_back", now, reason=fault)
            if over and not rollout.paused:
                if rollout.step + 1 < len(rollout.steps):
                    return _in(rollout, "applying", now, step=rollout.step + 1)
                return _in(rollout, "done", now)
        case "rolling_back":
            back = all(
                is_healthy_on(report, rollout.before) or _gave_up(report, rollout.before)
                for report in reports.values()
            )
            if back and not progress.under_way and not _unheard(rollout, reports, progress):
                return _in(rollout, "rolled_back", now)
    return rollout


def _unheard(
    rollout: Rollout, reports: Mapping[WorkerId, WorkerReport], progress: RolloutProgress
) -> bool:
    """Whether a worker that has the version may still say so, to a leader that is new."""
    return not progress.heard_all and any(worker not in reports for worker in rollout.given)


def _find_failed(
    rollout: Rollout,
    reports: Mapping[WorkerId, WorkerReport],
    progress: RolloutProgress,
    now: float,
) -> str | None:
    """Why the version is no good for a worker that was to go over to it."""
    for worker in rollout.reached:
        report, order = reports.get(worker), progress.under_way.get(worker)
        if order is not None and order.refusal is not None:
            return f"{worker} does not take it: {order.refusal}"
        if order is not None and now - order.since > rollout.settings.patience_s:
            state = "gone" if report is None else report.state
            return f"{worker} is {state} after {rollout.settings.patience_s:g} s"
        if report is None:
            continue
        if _gave_up(report, rollout.version):
            return f"{worker} does not come up: {report.config_problem}"
        if report.config_version != rollout.version:
            continue
        if report.state == "unhealthy":
            return f"{worker} has no engine that runs with it"
        before = order.failed if order is not None else frozenset(_failed(report))
        if new := [model for model in report.models if model.id in _failed(report) - before]:
            return f"{worker} cannot load {new[0].id}: {new[0].error}"
    return None


def _forget_done(
    state: RolloutState,
    reports: Mapping[WorkerId, WorkerReport],
    progress: RolloutProgress,
    now: float,
) -> None:
    forward = state.rollout is not None and state.rollout.phase in ("applying", "baking")
    members = state.rollout.reached if state.rollout is not None and forward else []
    for worker, order in list(progress.under_way.items()):
        report = reports.get(worker)
        done = order.version != expected_version(state, worker) or (
            report is not None
            and is_healthy_on(report, order.version)
            and not _newly_failed(report, order)
        )
        if done or (worker not in members and now - order.since > _AGAIN_S and report is not None):
            del progress.under_way[worker]


def _newly_failed(report: WorkerReport, order: PendingSwitch) -> bool:
    return bool(_failed(report) - order.failed)


def _orders(
    state: RolloutState,
    reports: Mapping[WorkerId, WorkerReport],
    progress: RolloutProgress,
    at_once: int,
) -> list[SwitchVersion]:
    free = at_once - len(progress.under_way)
    wanted = []
    for worker, report in sorted(reports.items()):
        version = expected_version(state, worker)
        if report.config_version == version or _gave_up(report, version):
            continue
        if worker not in progress.under_way and report.state not in ("draining", "stopped"):
            wanted.append(SwitchVersion(worker, version))
    return wanted[: max(0, free)]


def is_healthy_on(report: WorkerReport, version: int) -> bool:
    """Whether a worker serves with a version, and has loaded what that asks for."""
    return (
        report.config_version == version
        and report.state == "ready"
        and not report.pre_warming.in_progress
    )


def _gave_up(report: WorkerReport, version: int) -> bool:
    return (report.config_problem or "").startswith(f"version {version}:")


def _failed(report: WorkerReport) -> set[ModelId]:
    return {model.id for model in report.models if model.state == "failed"}


def _in(rollout: Rollout, phase: Phase, now: float, **also: object) -> Rollout:
    return rollout.model_copy(update={"phase": phase, "since": now, **also})


def _with(state: RolloutState, rollout: Rollout) -> RolloutState:
    stable = state.stable
    if rollout.phase == "done":
        stable = rollout.version
    return state.model_copy(update={"rollout": rollout, "stable": stable})


def begin(state: RolloutState, rollout: Rollout) -> RolloutState:
    """Another roll-out; the one before is history."""
    history = state.history
    if state.rollout is not None:
        history = [state.rollout, *history][:MOST_KEPT]
    return state.model_copy(
        update={
            "rollout": rollout,
            "history": history,
            "last_version": max(state.last_version, rollout.version),
        }
    )
