"""What happened in the cluster, from two states of it. Pure functions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from shared.ids import WorkerId
from shared.messages.health import ClusterHealth
from shared.messages.request_list import RequestSummary
from shared.messages.rollout import RolloutState
from shared.messages.worker_report import WorkerReport

Kind = Literal["controller", "worker", "model", "request", "rollout"]
Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the log of what happened."""

    level: Level
    kind: Kind
    text: str
    worker: WorkerId | None = None


def health_changes(before: ClusterHealth | None, after: ClusterHealth) -> Iterator[Change]:
    """Yield what happened between two answers; with no earlier one, who is there."""
    yield from _leader_changes(before, after)
    known = {worker.id: worker for worker in before.workers} if before else {}
    present = {worker.id: worker for worker in after.workers}
    for name, worker in present.items():
        yield from _worker_changes(known.get(name), worker)
    for name in sorted(known.keys() - present.keys()):
        was = known[name].state
        expected = was in ("draining", "stopped")
        level: Level = "info" if expected else "error"
        text = f"{name} left" if expected else f"{name} is gone: it sends no heartbeats"
        yield Change(level, "worker", text, name)


def _leader_changes(before: ClusterHealth | None, after: ClusterHealth) -> Iterator[Change]:
    if after.leader is not None and (before is None or before.leader != after.leader):
        leads = f"{after.leader.id} leads, in term {after.leader.term}"
        yield Change("info" if before is None else "warning", "controller", leads)
    if before is None:
        return
    known = {controller.id for controller in before.controllers}
    present = {controller.id for controller in after.controllers}
    for name in sorted(present - known):
        yield Change("info", "controller", f"controller {name} joined")
    for name in sorted(known - present):
        yield Change("warning", "controller", f"controller {name} is gone")


def _worker_changes(before: WorkerReport | None, after: WorkerReport) -> Iterator[Change]:
    name = after.id
    if before is None:
        yield Change("info", "worker", f"{name} joined: {after.hardware.chip or 'no chip'}", name)
    elif before.boot_id != after.boot_id:
        yield Change("warning", "worker", f"{name} was started again", name)
    elif before.state != after.state:
        level: Level = "error" if after.state == "unhealthy" else "info"
        yield Change(level, "worker", f"{name} is {after.state}", name)
    restarts = {engine.index: engine.restarts for engine in before.engines} if before else {}
    for engine in after.engines:
        if before is not None and engine.restarts > restarts.get(engine.index, 0):
            yield Change("error", "worker", f"{name}: engine {engine.index} was restarted", name)
    models = {model.id: model for model in before.models} if before else {}
    for model in after.models:
        was = models[model.id].state if model.id in models else None
        if was == model.state or (was is None and model.state == "available"):
            continue
        match model.state:
            case "failed":
                text = f"{model.id} failed on {name}: {model.error or 'no reason known'}"
                yield Change("error", "model", text, name)
            case "loading":
                yield Change("info", "model", f"{name} loads {model.id}", name)
            case "warm":
                yield Change("info", "model", f"{model.id} is warm on {name}", name)
            case "available":
                yield Change("info", "model", f"{name} unloaded {model.id}", name)


def request_changes(
    before: Mapping[str, RequestSummary], after: Mapping[str, RequestSummary]
) -> Iterator[Change]:
    """Yield the requests that were moved to another worker, between two lists by key."""
    for key, request in after.items():
        was = before.get(key)
        if was is None or request.migrations <= was.migrations:
            continue
        target = f"to {request.worker}" if request.worker else "to another worker"
        text = (
            f"{request.request_id} of {request.client} moved from {was.worker or 'its worker'} "
            f"{target} after {request.tokens} tokens"
        )
        yield Change("warning", "request", text, request.worker)


def rollout_changes(before: RolloutState | None, after: RolloutState) -> Iterator[Change]:
    """Yield what happened to the roll-out between two states."""
    rollout = after.rollout
    if rollout is None or before is None:
        return
    was = before.rollout if before.rollout and before.rollout.version == rollout.version else None
    version = f"version {rollout.version}"
    if was is None or (was.phase, was.step) != (rollout.phase, rollout.step):
        reason = f": {rollout.reason}" if rollout.reason else ""
        level: Level = "error" if rollout.phase == "rolling_back" else "info"
        yield Change(level, "rollout", f"{version} is {rollout.phase}{reason}")
    elif was.paused != rollout.paused:
        yield Change(
            "info", "rollout", f"{version} was {'paused' if rollout.paused else 'resumed'}"
        )
