"""Plans of roll-outs, and their progress."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from shared.cli.progress import ProgressDisplay
from shared.client import Cluster
from shared.errors import BusError, ClusterError, InvalidRequest, Unavailable
from shared.ids import WorkerId
from shared.messages.control import ConfigureWorker, SettingChange
from shared.messages.rollout import PlanRollout, Rollout, RolloutReply, RolloutState, ShowRollout
from shared.settings.changes import Effect
from shared.settings.controller import RolloutSettings as RolloutSettings

_POLL_S = 0.5
_SILENCE_LIMIT_S = 60.0
"""Long enough for another controller to become the leader."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What a settings file would change.

    Attributes:
        controllers: the effect on controllers; None if no setting of theirs changes.
        workers: for each worker the effect (None: nothing changes) and the changed settings.
        problems: why the file cannot be rolled out.
    """

    controllers: Effect | None
    controller_changes: list[SettingChange]
    workers: dict[WorkerId, tuple[Effect | None, list[SettingChange]]]
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        def dumped(changes: list[SettingChange]) -> list[dict[str, Any]]:
            return [change.model_dump() for change in changes]

        return {
            "controllers": {
                "effect": self.controllers, "changes": dumped(self.controller_changes)
            },
            "workers": {
                worker: {"effect": effect, "changes": dumped(changes)}
                for worker, (effect, changes) in self.workers.items()
            },
            "problems": self.problems,
        }  # fmt: skip


async def plan_rollout(cluster: Cluster, text: str) -> RolloutPlan:
    """Ask the leader and all workers what a settings file would change.

    Raises:
        ClusterError: no controller leads, or the leader refuses the file.
    """
    plan = await cluster.rollout(PlanRollout(text=text))
    reports = (await cluster.health()).workers
    number = (plan.state.last_version if plan.state is not None else 0) + 1
    order = ConfigureWorker(version=number, text=text, dry_run=True)
    workers: dict[WorkerId, tuple[Effect | None, list[SettingChange]]] = {}
    problems: list[str] = []

    async def ask(worker: WorkerId) -> None:
        try:
            reply = await cluster.control(worker, order)
        except ClusterError as error:
            problems.append(f"{worker}: {error.message}")
            return
        if reply.ok:
            workers[worker] = reply.effect, reply.changes
        else:
            problems.append(f"{worker}: {reply.message}")

    await asyncio.gather(*(ask(report.id) for report in reports))
    return RolloutPlan(plan.effect, plan.changes, dict(sorted(workers.items())), sorted(problems))


def rollout_settings(
    own: RolloutSettings, *, steps: str | None, bake_s: float | None, baseline_s: float | None
) -> RolloutSettings:
    """Return the roll-out settings of the file, overridden by the command line.

    Raises:
        InvalidRequest: `steps` are invalid.
    """
    changed: dict[str, Any] = {}
    if steps is not None:
        try:
            changed["steps_percent"] = [int(share) for share in steps.split(",")]
        except ValueError:
            raise InvalidRequest(
                f"--steps: {steps!r}: must be percentages, such as 25,50,100"
            ) from None
    if bake_s is not None:
        changed["bake_s"] = bake_s
    if baseline_s is not None:
        changed["baseline_s"] = baseline_s
    try:
        return RolloutSettings.model_validate({**own.model_dump(), **changed})
    except ValueError:
        raise InvalidRequest(
            f"--steps: {steps!r}: must rise from at least 1 to 100, such as 25,50,100"
        ) from None


async def follow_rollout(
    cluster: Cluster, state: RolloutState, display: ProgressDisplay
) -> RolloutReply:
    """Show the progress of a roll-out until the roll-out has ended.

    Raises:
        ClusterError: no controller has led for `_SILENCE_LIMIT_S`.
    """
    assert state.rollout is not None
    began_at, silent_s = state.rollout.began_at, 0.0
    while True:
        try:
            reply = await cluster.rollout(ShowRollout())
            silent_s = 0.0
        except (Unavailable, BusError):
            silent_s += _POLL_S
            if silent_s > _SILENCE_LIMIT_S:
                raise
        else:
            rollout = _same_rollout(reply.state, began_at)
            if rollout is None or rollout.ended:
                return reply
            display.update(f"version {rollout.version}", *_activity(rollout))
        await asyncio.sleep(_POLL_S)


def _same_rollout(state: RolloutState | None, began_at: float) -> Rollout | None:
    rollout = state.rollout if state is not None else None
    return rollout if rollout is not None and rollout.began_at == began_at else None


def _activity(rollout: Rollout) -> tuple[str, float]:
    done, steps = rollout.step, max(1, len(rollout.steps))
    if rollout.paused:
        return "is paused", done / steps
    match rollout.phase:
        case "measuring":
            return "measures the baseline", 0.0
        case "applying":
            return f"is applied to {_names(rollout)}", (done + 0.25) / steps
        case "baking":
            return f"is watched at {_names(rollout)}", (done + 0.5) / steps
        case _:
            return f"is rolled back: {rollout.reason}", 0.0


def _names(rollout: Rollout) -> str:
    step = rollout.steps[rollout.step] if rollout.steps else []
    return ", ".join(step[:3]) + (f" and {len(step) - 3} more" if len(step) > 3 else "")
