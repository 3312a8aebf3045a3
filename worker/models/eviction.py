"""Which idle models go when memory is short. Decides only."""

from collections.abc import Iterable, Sequence

from shared.messages.priorities import PRIORITIES, Priority
from worker.models.catalogue import Model


def idle_models(models: Iterable[Model], in_use: Iterable[str]) -> list[Model]:
    """Those that are warm, not pinned and without requests: the first to go first, which is the
    lowest priority, then the one not used for the longest time."""
    used = set(in_use)
    idle = [
        model
        for model in models
        if model.state == "warm" and not model.source.pinned and model.id not in used
    ]
    return sorted(idle, key=lambda model: (-_rank(model.source.priority), model.used_at))


def victims(idle: Sequence[Model], missing_bytes: int, newcomer: Priority) -> list[Model]:
    """Whom a model of priority `newcomer` replaces so that it gets what it is missing: no more
    than needed, none of a higher priority; empty where they do not suffice.

    Args:
        idle: in the order in which they may go.
        missing_bytes: more than 0.
    """
    chosen: list[Model] = []
    for model in idle:
        if _rank(model.source.priority) < _rank(newcomer):
            continue
        chosen.append(model)
        missing_bytes -= model.held_bytes
        if missing_bytes <= 0:
            return _needed(chosen, -missing_bytes)
    return []


def expired(idle: Iterable[Model], now: float) -> list[Model]:
    """Those that were not used for their `ttl_s`."""
    return [
        model
        for model in idle
        if model.source.ttl_s is not None and now - model.used_at >= model.source.ttl_s
    ]


def _needed(chosen: list[Model], spare_bytes: int) -> list[Model]:
    """Without those that a larger one made needless; of these the last to go stay first."""
    needed: list[Model] = []
    for model in reversed(chosen):
        if model.held_bytes <= spare_bytes:
            spare_bytes -= model.held_bytes
        else:
            needed.insert(0, model)
    return needed


def _rank(priority: Priority) -> int:
    return PRIORITIES.index(priority)
