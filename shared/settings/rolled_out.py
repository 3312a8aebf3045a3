"""A version of cluster.yaml that was rolled out, on a machine with a file of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.settings.overrides import Values

OF_THE_MACHINE: Sequence[tuple[str, ...]] = (
    ("nats",),
    ("discovery",),
    ("security",),
    ("gateway",),
    ("controller", "id"),
    ("controller", "metrics"),
    ("worker", "id"),
    ("worker", "labels"),
    ("worker", "kv_cache", "disk_path"),
    ("logging", "file"),
)
"""What each machine says for itself: a roll-out neither sets nor removes it."""


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
    """What was rolled out, with what the machine says for itself."""
    result = _copied(rolled_out)
    for location in OF_THE_MACHINE:
        _remove(result, location)
        if (value := _value(own, location)) is not None:
            _set(result, location, value)
    return result


def ignored(rolled_out: Mapping[str, Any]) -> list[str]:
    """The keys of a file that a roll-out leaves to each machine."""
    said = [location for location in OF_THE_MACHINE if _value(rolled_out, location) is not None]
    return [".".join(location) for location in said]


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
