"""Decides the next step of a roll-out, without taking it. Plain values: no clock, no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.rollout.gates import find_violation
from controller.rollout.worker_metrics import PeriodMetrics, error_share
from shared.errors import InvalidRequest
from shared.ids import BootId, ModelId, WorkerId
from shared.messages.rollout import MAX_STORED, Baseline, Phase, Rollout, RolloutState
from shared.messages.worker_report import WorkerReport
from shared.settings.controller import RolloutSettings as Settings


def plan_steps(
    workers: Sequence[WorkerId], settings: Settings, canaries: Sequence[WorkerId] = ()
) -> list[list[WorkerId]]:
    """Return the canaries, then the next workers up to each share of `steps_percent`; no step is
    empty.

    Args:
        canaries: by default the first workers by name.

    Raises:
        InvalidRequest: a canary is not among the workers.
    """
    if missing := [name for name in canaries if name not in workers]:
        raise InvalidRequest(f"there is no worker {missing[0]!r}", code="no_worker")
    first = list(dict.fromkeys(canaries)) or list(workers[: settings.canary])
    ordered = first + [worker for worker in workers if worker not in first]
    ends = [len(first)]
    ends += [-(-len(ordered) * percent // 100) for percent in settings.steps_percent]
    steps, begin = [], 0
    for end in ends:
        if end > begin:
            steps.append(ordered[begin:end])
            begin = end
    return steps


_RETRY_S = 10.0
"""After this time a worker outside the current steps that did not switch gets its order again."""


@dataclass(frozen=True, slots=True)
class SwitchConfigVersion:
    """The order that a worker switches to a version."""

    worker: WorkerId
    version: int


@dataclass(slots=True)
class PendingVersionSwitch:
    """A worker was ordered to switch to a version.

    Attributes:
        since: when, seconds since 1970.
        boot_id: the worker's boot then.
        failed: the models that the worker had failed to load before.
        rejection: why the worker rejected the order; None if it did not.
    """

    version: int
    since: float
    boot_id: BootId
    failed: frozenset[ModelId]
    rejection: str | None = None


@dataclass(slots=True)
class VolatileRolloutState:
    """State of the leader that is not stored; a new leader starts with a new one.

    Attributes:
        all_reported: every worker that is alive has reported; the others are gone.
        pending: orders that workers have not completed yet.
        metrics: of the current phase, if it measures.
    """

    all_reported: bool = True
    pending: dict[WorkerId, PendingVersionSwitch] = field(default_factory=dict)
    metrics: PeriodMetrics | None = None


@dataclass(frozen=True, slots=True)
class RolloutTransition:
    """The new state, and the orders for workers, to be sent after the state was stored."""

    state: RolloutState
    orders: Sequence[SwitchConfigVersion] = ()


def expected_version(state: RolloutState, worker: WorkerId) -> int:
    """Return the version that a worker must run now."""
    rollout = state.rollout
    if rollout is None or rollout.ended:
        return state.stable
    return rollout.version if worker in rollout.reached else rollout.before


def on_trial(state: RolloutState) -> frozenset[WorkerId]:
    """Return the workers that run a version that is on trial there."""
    rollout = state.rollout
    if rollout is None or not rollout.steps:
        return frozenset()
    if rollout.phase == "rolling_back":  # for a moment they still run the failed version
        return frozenset(rollout.given)
    if rollout.phase in ("applying", "baking"):
        return frozenset(rollout.steps[rollout.step])
    return frozenset()


def decide(
    state: RolloutState,
    reports: Mapping[WorkerId, WorkerReport],
    progress: VolatileRolloutState,
    now: float,
) -> RolloutTransition:
    """Return the next state and orders.

    Args:
        reports: of the workers that are alive.
        progress: mutated: completed orders are removed.
        now: seconds since 1970.
    """
    _remove_completed(state, reports, progress, now)
    rollout = state.rollout
    if rollout is not None and not rollout.ended:
        rollout = _next_phase(rollout, reports, progress, now)
        if rollout is not state.rollout:
            progress.metrics = None
            state = _with_rollout(state, rollout)
    at_once = 1
    if rollout is not None and rollout.phase == "rolling_back":
        at_once = max(1, len(reports) // 2)
    paused = rollout is not None and rollout.paused and rollout.phase != "rolling_back"
    if paused or (rollout is not None and rollout.phase == "measuring"):
        return RolloutTransition(state)
    return RolloutTransition(state, _orders(state, reports, progress, at_once))


def record_order(
    state: RolloutState,
    order: SwitchConfigVersion,
    report: WorkerReport,
    progress: VolatileRolloutState,
    now: float,
) -> None:
    """Record in `progress` that an order is sent."""
    progress.pending[order.worker] = PendingVersionSwitch(
        order.version, now, report.boot_id, frozenset(_failed_models(report))
    )


def _next_phase(
    rollout: Rollout,
    reports: Mapping[WorkerId, WorkerReport],
    progress: VolatileRolloutState,
    now: float,
) -> Rollout:
    """Return the roll-out in its next phase if it is time, else unchanged."""
    settings = rollout.settings
    match rollout.phase:
        case "measuring":
            if rollout.paused or progress.metrics is None:
                return rollout
            if now - progress.metrics.began_at >= settings.baseline_s:
                baseline = Baseline(
                    error_share=error_share(progress.metrics.counts()),
                    speeds=progress.metrics.speeds(),
                )
                return _enter(rollout, "applying", now, baseline=baseline)
        case "applying":
            if (failure := _find_failure(rollout, reports, progress, now)) is not None:
                return _enter(rollout, "rolling_back", now, reason=failure)
            members = [reports[worker] for worker in rollout.reached if worker in reports]
            is_pending = any(worker in progress.pending for worker in rollout.reached)
            if is_pending or _lacks_reports(rollout, reports, progress):
                return rollout
            if all(is_healthy_on(report, rollout.version) for report in members):
                return _enter(rollout, "baking", now)
        case "baking":
            if progress.metrics is None:
                return rollout
            is_over = now - progress.metrics.began_at >= settings.bake_s
            failure = find_violation(
                settings.gates,
                rollout.baseline or Baseline(),
                progress.metrics,
                rollout.reached,
                at=now,
                complete=is_over,
            )
            if failure is not None:
                return _enter(rollout, "rolling_back", now, reason=failure)
            if is_over and not rollout.paused:
                if rollout.step + 1 < len(rollout.steps):
                    return _enter(rollout, "applying", now, step=rollout.step + 1)
                return _enter(rollout, "done", now)
        case "rolling_back":
            are_back = all(
                is_healthy_on(report, rollout.before) or _failed_to_start(report, rollout.before)
                for report in reports.values()
            )
            if are_back and not progress.pending and not _lacks_reports(rollout, reports, progress):
                return _enter(rollout, "rolled_back", now)
    return rollout


def _lacks_reports(
    rollout: Rollout, reports: Mapping[WorkerId, WorkerReport], progress: VolatileRolloutState
) -> bool:
    """Whether a new leader must wait for reports of workers that have the version."""
    return not progress.all_reported and any(worker not in reports for worker in rollout.given)


def _find_failure(
    rollout: Rollout,
    reports: Mapping[WorkerId, WorkerReport],
    progress: VolatileRolloutState,
    now: float,
) -> str | None:
    """Return why a worker failed to switch to the version; None if none did."""
    for worker in rollout.reached:
        report, order = reports.get(worker), progress.pending.get(worker)
        if order is not None and order.rejection is not None:
            return f"{worker} rejected the version: {order.rejection}"
        if order is not None and now - order.since > rollout.settings.patience_s:
            state = "gone" if report is None else report.state
            return f"{worker} is {state} after {rollout.settings.patience_s:g} s"
        if report is None:
            continue
        if _failed_to_start(report, rollout.version):
            return f"{worker} did not start: {report.config_problem}"
        if report.config_version != rollout.version:
            continue
        if report.state == "unhealthy":
            return f"{worker} has no running engine"
        before = order.failed if order is not None else frozenset(_failed_models(report))
        if new := [model for model in report.models if model.id in _failed_models(report) - before]:
            return f"{worker} cannot load {new[0].id}: {new[0].error}"
    return None


def _remove_completed(
    state: RolloutState,
    reports: Mapping[WorkerId, WorkerReport],
    progress: VolatileRolloutState,
    now: float,
) -> None:
    is_forward = state.rollout is not None and state.rollout.phase in ("applying", "baking")
    members = state.rollout.reached if state.rollout is not None and is_forward else []
    for worker, order in list(progress.pending.items()):
        report = reports.get(worker)
        done = order.version != expected_version(state, worker) or (
            report is not None
            and is_healthy_on(report, order.version)
            and not _newly_failed(report, order)
        )
        if done or (worker not in members and now - order.since > _RETRY_S and report is not None):
            del progress.pending[worker]


def _newly_failed(report: WorkerReport, order: PendingVersionSwitch) -> bool:
    return bool(_failed_models(report) - order.failed)


def _orders(
    state: RolloutState,
    reports: Mapping[WorkerId, WorkerReport],
    progress: VolatileRolloutState,
    at_once: int,
) -> list[SwitchConfigVersion]:
    capacity = at_once - len(progress.pending)
    wanted = []
    for worker, report in sorted(reports.items()):
        version = expected_version(state, worker)
        if report.config_version == version or _failed_to_start(report, version):
            continue
        if worker not in progress.pending and report.state not in ("draining", "stopped"):
            wanted.append(SwitchConfigVersion(worker, version))
    return wanted[: max(0, capacity)]


def is_healthy_on(report: WorkerReport, version: int) -> bool:
    """Whether a worker is ready with a version, and has warmed all models of that version."""
    return (
        report.config_version == version
        and report.state == "ready"
        and not report.pre_warming.in_progress
    )


def _failed_to_start(report: WorkerReport, version: int) -> bool:
    return (report.config_problem or "").startswith(f"version {version}:")


def _failed_models(report: WorkerReport) -> set[ModelId]:
    return {model.id for model in report.models if model.state == "failed"}


def _enter(rollout: Rollout, phase: Phase, now: float, **also: object) -> Rollout:
    return rollout.model_copy(update={"phase": phase, "since": now, **also})


def _with_rollout(state: RolloutState, rollout: Rollout) -> RolloutState:
    stable = state.stable
    if rollout.phase == "done":
        stable = rollout.version
    return state.model_copy(update={"rollout": rollout, "stable": stable})


def start_rollout(state: RolloutState, rollout: Rollout) -> RolloutState:
    """Return the state with a new roll-out; the one before moves to the history."""
    history = state.history
    if state.rollout is not None:
        history = [state.rollout, *history][:MAX_STORED]
    return state.model_copy(
        update={
            "rollout": rollout,
            "history": history,
            "last_version": max(state.last_version, rollout.version),
        }
    )


def change_rollout(state: RolloutState, **fields: object) -> RolloutState:
    """Return the state with changed fields of the current roll-out.

    Raises:
        InvalidRequest: nothing is being rolled out.
    """
    if state.rollout is None or state.rollout.ended:
        raise InvalidRequest("nothing is being rolled out")
    return state.model_copy(update={"rollout": state.rollout.model_copy(update=fields)})
