"""Planning a roll-out, and following how it goes."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from shared.cli.progress import LoadDisplay
from shared.client import Cluster
from shared.errors import BusError, ClusterError, InvalidRequest, Unavailable
from shared.ids import WorkerId
from shared.messages.control import ConfigureWorker, SettingChange
from shared.messages.rollout import PlanRollout, Rollout, RolloutReply, RolloutState, ShowRollout
from shared.settings.changes import Effect
from shared.settings.controller import RolloutSettings as RolloutSettings

_POLL_S = 0.5
_SILENCE_LIMIT_S = 60.0
"""Another controller may have to take the lead first."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What a file would change.

    Attributes:
        workers: what it takes of each, and what differs there; None where nothing does.
        problems: why it cannot be rolled out.
    """

    controllers: Effect | None
    controller_changes: list[SettingChange]
    workers: dict[WorkerId, tuple[Effect | None, list[SettingChange]]]
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        def changes(all_: list[SettingChange]) -> list[dict[str, Any]]:
            return [one.model_dump() for one in all_]

        return {
            "controllers": {
                "effect": self.controllers, "changes": changes(self.controller_changes)
            },
            "workers": {
                worker: {"effect": effect, "changes": changes(differing)}
                for worker, (effect, differing) in self.workers.items()
            },
            "problems": self.problems,
        }  # fmt: skip


async def plan_of(cluster: Cluster, text: str) -> RolloutPlan:
    """Ask the leading controller and all workers what a file would change there.

    Raises:
        ClusterError: the controllers do not answer, or refuse the file.
    """
    reply = await cluster.rollout(PlanRollout(text=text))
    reports = (await cluster.health()).workers
    number = (reply.state.last_version if reply.state is not None else 0) + 1
    order = ConfigureWorker(version=number, text=text, dry_run=True)
    workers: dict[WorkerId, tuple[Effect | None, list[SettingChange]]] = {}
    problems: list[str] = []

    async def ask(worker: WorkerId) -> None:
        try:
            told = await cluster.control(worker, order)
        except ClusterError as error:
            problems.append(f"{worker}: {error.message}")
            return
        if told.ok:
            workers[worker] = told.effect, told.changes
        else:
            problems.append(f"{worker}: {told.message}")

    await asyncio.gather(*(ask(report.id) for report in reports))
    return RolloutPlan(reply.effect, reply.changes, dict(sorted(workers.items())), sorted(problems))


def settings_of(
    own: RolloutSettings, *, steps: str | None, bake_s: float | None, baseline_s: float | None
) -> RolloutSettings:
    """How it is to be done: as the file says, but for what the command line does.

    Raises:
        InvalidRequest: `steps` are none.
    """
    changed: dict[str, Any] = {}
    if steps is not None:
        try:
            changed["steps_percent"] = [int(share) for share in steps.split(",")]
        except ValueError:
            raise InvalidRequest(f"--steps: {steps!r}: percents, such as 25,50,100") from None
    if bake_s is not None:
        changed["bake_s"] = bake_s
    if baseline_s is not None:
        changed["baseline_s"] = baseline_s
    try:
        return RolloutSettings.model_validate({**own.model_dump(), **changed})
    except ValueError:
        raise InvalidRequest(
            f"--steps: {steps!r}: shares from 1 to 100, rising, the last one 100"
        ) from None


async def follow(cluster: Cluster, state: RolloutState, display: LoadDisplay) -> RolloutReply:
    """Show how a roll-out goes until it has ended.

    Raises:
        ClusterError: nobody has led for a minute.
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
            rollout = _same(reply.state, began_at)
            if rollout is None or rollout.ended:
                return reply
            display.update(f"version {rollout.version}", *_doing(rollout))
        await asyncio.sleep(_POLL_S)


def _same(state: RolloutState | None, began_at: float) -> Rollout | None:
    rollout = state.rollout if state is not None else None
    return rollout if rollout is not None and rollout.began_at == began_at else None


def _doing(rollout: Rollout) -> tuple[str, float]:
    done, steps = rollout.step, max(1, len(rollout.steps))
    if rollout.paused:
        return "is paused", done / steps
    match rollout.phase:
        case "measuring":
            return "what was before is measured", 0.0
        case "applying":
            return f"goes to {_names(rollout)}", (done + 0.25) / steps
        case "baking":
            return f"is watched at {_names(rollout)}", (done + 0.5) / steps
        case _:
            return f"goes back: {rollout.reason}", 0.0


def _names(rollout: Rollout) -> str:
    step = rollout.steps[rollout.step] if rollout.steps else []
    return ", ".join(step[:3]) + (f" and {len(step) - 3} more" if len(step) > 3 else "")
