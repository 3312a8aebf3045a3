"""The source of a setting, and the description of errors for the people who fix them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from shared.codec import shortened
from shared.errors import SettingsError
from shared.settings.tree import ClusterSettings
from shared.settings.yaml_file import Location, YamlFile

PREFIX = "CLUSTER__"


@dataclass(frozen=True, slots=True)
class SettingOrigins:
    """All sources of settings.

    Attributes:
        flags: of the command line.
        files: the first file that has a key counts.
    """

    flags: Mapping[str, Any]
    files: Sequence[YamlFile]

    def of(self, location: Location) -> str:
        """Return the source of the value at a location."""
        value: Any = self.flags
        for part in location:
            if isinstance(value, Mapping):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part]
            else:
                value = None
        if value is not None:
            return "command line"
        variables = {name.upper(): name for name in os.environ}
        for above in _upwards(location):
            name = PREFIX + "__".join(str(part).upper() for part in above)
            if name in variables:
                return f"environment variable {variables[name]}"
        for above in _upwards(location):
            for file in self.files:
                if (line := file.lines.get(above)) is not None:
                    return f"{file.path}, line {line}"
        return str(self.files[0].path) if self.files else "settings"

    def explain(
        self, error: ValidationError, *, at: Location = (), of: Location = ()
    ) -> SettingsError:
        """Return the first problem, in one line.

        Args:
            at: the location of the validated values.
            of: the section as which they were validated.
        """
        problems = error.errors(include_url=False)
        problem = problems[0]
        within = _setting((*of, *problem["loc"]))[len(of) :]
        location = (*at, *within)
        key = ".".join(map(shortened, location))
        alternatives = [each["msg"] for each in problems if each["loc"][: len(within)] == within]
        message = "; or ".join(alternatives).removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            allowed = _allowed((*of, *problem["loc"][:-1]))
            message = f"unknown key; allowed here: {', '.join(allowed)}"
        elif "nats" not in location[:1] and not isinstance(problem["input"], dict | list):
            # Values that may be secrets are not shown.
            message = f"{message}, not {shortened(repr(problem['input']))}"
        return SettingsError(f"{self.of(location)}: {key}: {message}", param=key)


def section(shape: Any) -> type[BaseModel] | None:
    """Return the section type of a field, also of an optional one."""
    if get_origin(shape) in (dict, list):
        return None
    candidates = (shape, *get_args(shape))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def value_shape(shape: Any) -> Any:
    """Return the type of the values of a mapping or list; None for other types."""
    for candidate in (shape, *get_args(shape)):
        if get_origin(candidate) in (dict, list):
            return get_args(candidate)[-1]
    return None


def _setting(location: Location) -> Location:
    """Return a location without the parts that name the member of a union."""
    shape: Any = ClusterSettings
    for depth, part in enumerate(location):
        inside = section(shape)
        if inside is not None and part in inside.model_fields:
            shape = inside.model_fields[str(part)].annotation
        elif inside is None and (values := value_shape(shape)) is not None:
            shape = values
        else:
            is_part = inside is not None or isinstance(part, int)
            return location if is_part else location[:depth]
    return location


def _upwards(location: Location) -> list[Location]:
    """Return a location and all its parents."""
    return [location[:length] for length in range(len(location), 0, -1)]


def _allowed(location: Location) -> list[str]:
    shape: Any = ClusterSettings
    for part in location:
        inside = section(shape)
        if inside is None:
            shape = value_shape(shape)
        elif part in inside.model_fields:
            shape = inside.model_fields[str(part)].annotation
        else:
            return []
    inside = section(shape)
    return list(inside.model_fields) if inside else []
