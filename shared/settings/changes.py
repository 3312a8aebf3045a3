"""What differs between two versions of the settings, and what it takes until that holds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shared.settings.models import ModelSource
from shared.settings.rolled_out import OF_THE_MACHINE
from shared.settings.tree import ClusterSettings

Effect = Literal["live", "models", "restart"]
"""At once; at once, but models are to be loaded first; when the process has started again."""

_MODELS = ("skills", "models", "worker.models", "worker.pre_warming.models")
_LIVE_IN_WORKERS = (
    "logging.level",
    "worker.drain_timeout_ms",
    "worker.model_loading",
    "worker.request_queue.max_depth",
    "worker.request_queue.max_wait_ms",
    "worker.request_queue.promote_after_ms",
    "worker.request_queue.reject_when_full",
    "worker.resource_limits",
    "worker.sessions",
)
_OF_WORKERS = (
    "worker",
    "logging",
    "controller.failover.heartbeat_interval_ms",
    "controller.failover.missed_heartbeats",
    "controller.circuit_breaker.recovery_timeout_ms",
)
_LIVE_IN_CONTROLLERS = (
    "skills",
    "logging.level",
    "controller.routing",
    "controller.dispatch",
    "controller.retry",
    "controller.waiting_room",
    "controller.circuit_breaker",
    "controller.failover.migration_limit",
    "controller.rollout",
    "worker.kv_cache.prompt_rules",
)
_OF_CONTROLLERS = ("skills", "logging", "controller", "worker.kv_cache.prompt_rules")


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """One setting, by its path with dots; None where it is not there."""

    key: str
    before: Any
    after: Any


def changes(before: ClusterSettings, after: ClusterSettings) -> list[SettingDifference]:
    """All that differs, but for what each machine says for itself, in the order of the file."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [
        SettingDifference(key, old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def effect_on_worker(before: ClusterSettings, after: ClusterSettings) -> Effect | None:
    """What a worker has to do to go from one to the other; None where nothing concerns it."""
    concerned = [one.key for one in changes(before, after) if _below(one.key, _OF_WORKERS)]
    concerned = [key for key in concerned if not _below(key, _MODELS)]
    if any(not _below(key, _LIVE_IN_WORKERS) for key in concerned):
        return "restart"
    of_models = _effect_on_models(before, after)
    return of_models or ("live" if concerned else None)


def effect_on_controller(before: ClusterSettings, after: ClusterSettings) -> Effect | None:
    """The same for a controller."""
    concerned = [one.key for one in changes(before, after) if _below(one.key, _OF_CONTROLLERS)]
    if any(not _below(key, _LIVE_IN_CONTROLLERS) for key in concerned):
        return "restart"
    return "live" if concerned else None


def _effect_on_models(before: ClusterSettings, after: ClusterSettings) -> Effect | None:
    old, new = _sources(before), _sources(after)
    if any(new.get(model) != source for model, source in old.items()):
        return "restart"  # one goes, or is another one now
    if new != old or set(after.pre_warmed_models) - set(before.pre_warmed_models):
        return "models"
    return None


def _sources(settings: ClusterSettings) -> Mapping[str, ModelSource]:
    named = dict.fromkeys([*settings.pre_warmed_models, *settings.served_models])
    return {model: settings.models.get(model) or ModelSource(path=model) for model in named}


def _leaves(settings: ClusterSettings) -> Iterator[tuple[str, Any]]:
    values = settings.model_dump(mode="json", exclude={"overrides"})
    own = [".".join(location) for location in OF_THE_MACHINE]
    for key, value in _flat(values, ""):
        if not _below(key, own):
            yield key, value


def _flat(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{above}.{name}" if above else name
        if isinstance(value, dict) and value:
            yield from _flat(value, key)
        else:
            yield key, None if value == {} else value


def _below(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)
