"""The differences between two versions of the settings, and what is required to apply them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shared.settings.models import ModelSettings
from shared.settings.rolled_out import MACHINE_SETTINGS
from shared.settings.tree import ClusterSettings

Effect = Literal["live", "models", "restart"]
"""Applied at once; at once, after models were loaded; after a restart of the process."""

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
_USED_BY_WORKERS = (
    "worker",
    "logging",
    "telemetry",
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
_USED_BY_CONTROLLERS = (
    "skills",
    "logging",
    "telemetry",
    "controller",
    "worker.kv_cache.prompt_rules",
)


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting, by its dotted path; a value is None where the setting does not exist."""

    key: str
    before: Any
    after: Any


def changes(before: ClusterSettings, after: ClusterSettings) -> list[SettingDifference]:
    """Return all differences, except in settings of a machine, in the order of the file."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [
        SettingDifference(key, old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def effect_on_worker(before: ClusterSettings, after: ClusterSettings) -> Effect | None:
    """Return what a worker must do to apply the changes; None if it uses none of them."""
    changed = [each.key for each in changes(before, after)]
    used = [key for key in changed if _below(key, _USED_BY_WORKERS) and not _below(key, _MODELS)]
    if any(not _below(key, _LIVE_IN_WORKERS) for key in used):
        return "restart"
    return _effect_on_models(before, after) or ("live" if used else None)


def effect_on_controller(before: ClusterSettings, after: ClusterSettings) -> Effect | None:
    """Return what a controller must do to apply the changes; None if it uses none of them."""
    used = [each.key for each in changes(before, after) if _below(each.key, _USED_BY_CONTROLLERS)]
    if any(not _below(key, _LIVE_IN_CONTROLLERS) for key in used):
        return "restart"
    return "live" if used else None


def _effect_on_models(before: ClusterSettings, after: ClusterSettings) -> Effect | None:
    old, new = _sources(before), _sources(after)
    if any(new.get(model) != source for model, source in old.items()):
        return "restart"  # a model was removed or replaced
    if new != old or set(after.pre_warmed_models) - set(before.pre_warmed_models):
        return "models"
    return None


def _sources(settings: ClusterSettings) -> Mapping[str, ModelSettings]:
    named = dict.fromkeys([*settings.pre_warmed_models, *settings.served_models])
    return {model: settings.models.get(model) or ModelSettings(path=model) for model in named}


def _leaves(settings: ClusterSettings) -> Iterator[tuple[str, Any]]:
    values = settings.model_dump(mode="json", exclude={"overrides"})
    own = [".".join(location) for location in MACHINE_SETTINGS]
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
