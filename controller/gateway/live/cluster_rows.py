"""The cluster's health as rows of the views `overview`, `machines` and `models`. Pure functions."""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

from controller.gateway.live.rate_history import STEP_S, RateHistory
from controller.gateway.live.table import Row
from shared.ids import ModelId, SkillName
from shared.messages.base import PRIORITIES
from shared.messages.health import ClusterHealth
from shared.messages.model_status import ABILITIES, ModelState, ModelStatus
from shared.messages.worker_report import WorkerReport

_MAX_WARM_NAMES = 8
_MAX_WORKERS_OF_MODEL = 50
_MEMORY_MASK = ~(2**22 - 1)
"""Memory is shown in steps of 4 MiB: rows shall not change for nothing."""
_STATES: tuple[ModelState, ...] = ("failed", "loading", "warm", "available")
"""Of models; the workers of a model are listed in this order."""


def overview(
    health: ClusterHealth | None, problem: str | None, history: RateHistory
) -> dict[str, Any]:
    """Return the view of a cluster whose last health is `health`.

    Args:
        problem: why the last query failed.
    """
    if health is None:
        health = ClusterHealth(status="unavailable", skills={}, controllers=[], workers=[])
    workers = health.workers
    return {
        "status": "unavailable" if problem else health.status,
        "problem": problem,
        "leader": health.leader.model_dump() if health.leader else None,
        "controllers": [
            {
                "id": controller.id,
                "state": controller.state,
                "leader": controller.leader,
                "active": controller.active_requests,
                "waiting": controller.waiting_requests,
                "migrations": controller.migrations,
                "version": controller.version,
                "uptime_s": _whole_minutes(controller.uptime_s),
                "problem": controller.leader_problem,
            }
            for controller in health.controllers
        ],
        "skills": health.skills,
        "workers": len(workers),
        "ready": sum(worker.state == "ready" for worker in workers),
        "running": sum(worker.active_requests for worker in workers),
        "queued": sum(worker.queued_requests for worker in workers),
        "waiting": sum(controller.waiting_requests for controller in health.controllers),
        "tokens_per_s": round(sum(worker.tokens_per_s for worker in workers), 1),
        "memory_used_bytes": sum(_used_bytes(worker) for worker in workers),
        "memory_bytes": sum(worker.hardware.memory_bytes for worker in workers),
        "history": {"step_s": STEP_S, "tokens_per_s": history.total},
    }


def machine_rows(health: ClusterHealth, history: RateHistory) -> dict[str, Row]:
    """Return a row for each worker."""
    breakers = {
        worker: state
        for controller in health.controllers
        if controller.leader
        for worker, state in controller.breakers.items()
    }
    return {
        worker.id: _machine(worker) | {
            "breaker": breakers.get(worker.id),
            "history": history.worker(worker.id),
        }
        for worker in health.workers
    }  # fmt: skip


def _machine(worker: WorkerReport) -> dict[str, Any]:
    levels = worker.queue.levels
    states = Counter(model.state for model in worker.models)
    return {
        "id": worker.id,
        "state": worker.state,
        "chip": worker.hardware.chip,
        "accelerator": worker.hardware.accelerator,
        "os": worker.hardware.os,
        "cores": worker.hardware.cores,
        "cpu_cores": round(worker.cpu_cores, 1),
        "version": worker.version,
        "uptime_s": _whole_minutes(worker.uptime_s),
        "labels": worker.labels,
        "memory": _memory(worker),
        "active": worker.active_requests,
        "queued": {
            priority: levels[priority].queued if priority in levels else 0
            for priority in PRIORITIES
        },
        "slots": worker.max_batch_size,
        "rows": sum(batch.rows for engine in worker.engines for batch in engine.batches),
        "tokens_per_s": round(worker.tokens_per_s, 1),
        "models": {state: states[state] for state in _STATES},
        "warm": [model.id for model in worker.models if model.state == "warm"][:_MAX_WARM_NAMES],
        "engines": [
            {
                "index": engine.index,
                "state": engine.state,
                "restarts": engine.restarts,
                "step_ms": round(engine.step_ms, 1),
            }
            for engine in worker.engines
        ],
        "config_version": worker.config_version,
        "config_problem": worker.config_problem,
    }


def _memory(worker: WorkerReport) -> dict[str, Any]:
    """Return how the memory of the machine is used, in bytes. Weights count as often as engines
    hold them, and at most what the worker uses."""
    memory = worker.memory
    used = _used_bytes(worker)
    kv = sum(engine.kv_bytes + engine.kv_memory.memory_bytes for engine in worker.engines)
    weights = sum(model.size_bytes for model in worker.models if model.state == "warm")
    kv = min(kv, used)
    weights = min(weights, used - kv)
    in_bytes = {
        "machine_bytes": worker.hardware.memory_bytes,
        "models_bytes": weights,
        "kv_bytes": kv,
        "other_bytes": used - kv - weights,
        "available_bytes": memory.available_bytes,
        "soft_bytes": memory.soft_bytes,
        "hard_bytes": memory.hard_bytes,
    }
    return {
        **{name: value & _MEMORY_MASK for name, value in in_bytes.items()},
        "pressure": memory.pressure,
    }


def _used_bytes(worker: WorkerReport) -> int:
    return worker.memory.own_bytes or worker.memory_bytes


def model_rows(health: ClusterHealth) -> dict[str, Row]:
    """Return a row for each model that any worker has."""
    skills: defaultdict[ModelId, list[SkillName]] = defaultdict(list)
    for skill, models in health.skills.items():
        for model in models:
            skills[model].append(skill)
    placed: defaultdict[ModelId, list[tuple[WorkerReport, ModelStatus]]] = defaultdict(list)
    for worker in health.workers:
        for status in worker.models:
            placed[status.id].append((worker, status))
    return {model: _model(model, skills[model], placed[model]) for model in sorted(placed)}


def _model(
    model: ModelId, skills: Collection[SkillName], placed: list[tuple[WorkerReport, ModelStatus]]
) -> dict[str, Any]:
    statuses = [status for _, status in placed]
    states = Counter(status.state for status in statuses)
    contexts = [each.max_context_tokens for each in statuses if each.max_context_tokens]
    abilities = {ability for status in statuses for ability in status.abilities or ()}
    alone = next((status for status in statuses if status.batching == "alone"), None)
    placed = sorted(placed, key=lambda each: (_STATES.index(each[1].state), each[0].id))
    return {
        "id": model,
        "skills": skills,
        "abilities": [ability for ability in ABILITIES if ability in abilities],
        "context_tokens": max(contexts, default=None),
        "batching": "alone" if alone else next((s.batching for s in statuses if s.batching), None),
        "batching_reason": alone.batching_reason if alone else None,
        "states": {state: states[state] for state in _STATES},
        "active": sum(status.active_requests for status in statuses),
        "queued": sum(status.queued_requests for status in statuses),
        "size_bytes": max((status.size_bytes for status in statuses), default=0),
        "warnings": list(dict.fromkeys(each for status in statuses for each in status.warnings)),
        "workers": [
            {
                "worker": worker.id,
                "state": status.state,
                "phase": status.phase,
                "progress": status.progress,
                "error": status.error,
                "pinned": status.pinned,
                "priority": status.priority,
                "active": status.active_requests,
                "queued": status.queued_requests,
                "idle_s": _whole_minutes(status.idle_s) if status.idle_s is not None else None,
            }
            for worker, status in placed[:_MAX_WORKERS_OF_MODEL]
        ],
    }


def _whole_minutes(seconds: float) -> int:
    """Return seconds, from one minute on in whole minutes: rows shall not change for nothing."""
    return int(seconds) if seconds < 60 else int(seconds // 60) * 60
