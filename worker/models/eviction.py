"""Selects the idle models to unload when memory is short. Pure functions."""

from collections.abc import Iterable, Sequence

from shared.messages.base import PRIORITIES, Priority
from worker.models.worker_models import WorkerModel


def idle_models(models: Iterable[WorkerModel], in_use: Iterable[str]) -> list[WorkerModel]:
    """Return the models that are warm, not pinned and without requests, in the order of eviction:
    lowest priority first, then least recently used."""
    used = set(in_use)
    idle = [
        model
        for model in models
        if model.state == "warm" and not model.pinned and model.id not in used
    ]
    return sorted(idle, key=lambda model: (-_rank(model.source.priority), model.used_at))


def victims(
    idle: Sequence[WorkerModel], missing_bytes: int, priority: Priority
) -> list[WorkerModel]:
    """Return the models to evict for a model of this priority: no more than necessary, none of a
    higher priority; empty if they do not free enough.

    Args:
        idle: in the order of eviction.
        missing_bytes: bytes to free; more than 0.
    """
    chosen: list[WorkerModel] = []
    for model in idle:
        if _rank(model.source.priority) < _rank(priority):
            continue
        chosen.append(model)
        missing_bytes -= model.held_bytes
        if missing_bytes <= 0:
            return _without_superfluous(chosen, -missing_bytes)
    return []


def expired(idle: Iterable[WorkerModel], now: float) -> list[WorkerModel]:
    """Return the models that were not used for their `ttl_s`."""
    return [
        model
        for model in idle
        if model.source.ttl_s is not None and now - model.used_at >= model.source.ttl_s
    ]


def _without_superfluous(chosen: list[WorkerModel], spare_bytes: int) -> list[WorkerModel]:
    """Drop models that a larger one makes unnecessary, in the reverse order of eviction."""
    necessary: list[WorkerModel] = []
    for model in reversed(chosen):
        if model.held_bytes <= spare_bytes:
            spare_bytes -= model.held_bytes
        else:
            necessary.insert(0, model)
    return necessary


def _rank(priority: Priority) -> int:
    return PRIORITIES.index(priority)
