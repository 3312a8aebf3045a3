"""Overrides: settings of the workers that match a condition."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from shared.settings.tree import ClusterSettings, WorkerSelector

Values = dict[str, Any]
"""Nested values as in the file, without defaults."""


@dataclass(frozen=True, slots=True)
class WorkerProperties:
    """The properties of a worker that are known before its settings."""

    worker: str
    labels: Mapping[str, str] = field(default_factory=dict)
    chip: str = ""
    memory_bytes: int = 0

    def fits(self, match: WorkerSelector) -> bool:
        if match.workers is not None and not any(
            fnmatchcase(self.worker, pattern) for pattern in match.workers
        ):
            return False
        if any(self.labels.get(name) != value for name, value in match.labels.items()):
            return False
        if match.chip is not None and match.chip.lower() not in self.chip.lower():
            return False
        least, most = match.min_memory_gb, match.max_memory_gb
        if least is not None and self.memory_bytes < least * 1e9:
            return False
        return most is None or self.memory_bytes <= most * 1e9


def overridden(
    values: Mapping[str, Any], settings: ClusterSettings, machine: WorkerProperties
) -> Values:
    """Return the values of a file with the overrides for one machine.

    Args:
        settings: the same values, validated.
    """
    result = dict(values)
    for override in settings.overrides:
        if machine.fits(override.match):
            result = merged(result, {"worker": override.worker, "logging": override.logging})
    return result


def merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """Merge section by section; values in `over` win."""
    result = dict(values)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result
