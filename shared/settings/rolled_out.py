"""A rolled-out version of cluster.yaml, combined with the file of a machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from shared.settings.overrides import Values

MACHINE_SETTINGS: Sequence[tuple[str, ...]] = (
    ("nats",),
    ("discovery",),
    ("security",),
    ("gateway",),
    ("controller", "id"),
    ("controller", "metrics"),
    ("worker", "id"),
    ("worker", "labels"),
    ("worker", "metrics"),
    ("worker", "kv_cache", "disk_path"),
    ("logging", "file"),
    ("telemetry", "headers"),
)
"""Settings of each machine, which a roll-out neither sets nor removes."""


@dataclass(frozen=True, slots=True)
class RolledOutVersion:
    """
    Attributes:
        version: 1 and up.
        text: of cluster.yaml.
    """

    version: int
    text: str


def combined(own: Mapping[str, Any], rolled_out: Mapping[str, Any]) -> Values:
    """Return the rolled-out values, with the machine settings of `own`."""
    result = _copied(rolled_out)
    for location in MACHINE_SETTINGS:
        _remove(result, location)
        if (value := _value(own, location)) is not None:
            _set(result, location, value)
    return result


def ignored(rolled_out: Mapping[str, Any]) -> list[str]:
    """Return the keys of machine settings in a file, which a roll-out ignores."""
    found = [each for each in MACHINE_SETTINGS if _value(rolled_out, each) is not None]
    return [".".join(location) for location in found]


def _copied(values: Mapping[str, Any]) -> Values:
    return {
        key: _copied(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def _value(values: Any, location: Sequence[str]) -> Any:
    for key in location:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def _remove(values: Values, location: Sequence[str]) -> None:
    above = _value(values, location[:-1])
    if isinstance(above, dict):
        above.pop(location[-1], None)


def _set(values: Values, location: Sequence[str], value: Any) -> None:
    for key in location[:-1]:
        below = values.get(key)
        values[key] = values = below if isinstance(below, dict) else {}
    values[location[-1]] = value


def ignored_settings(settings: BaseModel, above: str = "") -> Iterator[str]:
    """Yield the dotted keys of ignored settings that differ from their defaults."""
    for name, field in type(settings).model_fields.items():
        value, key = getattr(settings, name), f"{above}{name}"
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("ignored") and value != field.default:
            yield key
        if isinstance(value, BaseModel):
            yield from ignored_settings(value, f"{key}.")
