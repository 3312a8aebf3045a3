"""One frozen tree out of flags, environment and file; the first that names a key wins."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
)
from pydantic_settings import (
    SettingsError as PydanticSettingsError,
)

from shared.errors import SettingsError
from shared.settings.tree import ClusterSettings
from shared.settings.yaml_file import Location, YamlFile

CONFIG_VARIABLE = "CLUSTER_CONFIG"
DEFAULT_FILE = Path("config/cluster.yaml")
_PREFIX = "CLUSTER__"


def load_settings(
    file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> ClusterSettings:
    """Read the settings once, at the start of a process.

    Args:
        file: the YAML file; by default `$CLUSTER_CONFIG`, else `config/cluster.yaml` where
            it exists, else the defaults alone.
        flags: nested values from the command line; they win over everything.

    Raises:
        SettingsError: names the source, the key, the value and what is allowed.
    """
    yaml_file = _open(file)
    values = yaml_file.values if yaml_file else {}
    _check_variables()

    class Sources(ClusterSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, values)

    try:
        return Sources(**(flags or {}))
    except ValidationError as error:
        raise _explain(error, flags or {}, yaml_file) from None
    except PydanticSettingsError as error:
        raise SettingsError(f"environment: {error}; lists and mappings are JSON") from None


def _open(file: Path | None) -> YamlFile | None:
    if file is not None:
        return YamlFile(file)
    if named := os.environ.get(CONFIG_VARIABLE):
        return YamlFile(Path(named))
    return YamlFile(DEFAULT_FILE) if DEFAULT_FILE.is_file() else None


def _check_variables() -> None:
    """Refuse CLUSTER__ variables that name no setting; pydantic would pass over some."""
    for name in os.environ:
        if not name.upper().startswith(_PREFIX):
            continue
        fields: type[BaseModel] | None = ClusterSettings
        for part in name[len(_PREFIX) :].lower().split("__"):
            if fields is None:
                break
            if part not in fields.model_fields:
                allowed = ", ".join(fields.model_fields)
                raise SettingsError(
                    f"environment variable {name}: unknown setting {part!r}; allowed: {allowed}",
                    param=name,
                )
            fields = _section(fields.model_fields[part].annotation)


def _section(annotation: Any) -> type[BaseModel] | None:
    candidates = (annotation, *get_args(annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _explain(
    error: ValidationError, flags: Mapping[str, Any], yaml_file: YamlFile | None
) -> SettingsError:
    problem = error.errors(include_url=False)[0]
    location = problem["loc"]
    key = ".".join(map(str, location))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = f"unknown key; allowed here: {', '.join(_allowed(location[:-1]))}"
    elif "token" not in location and not isinstance(problem["input"], dict):
        message = f"{message}, not {problem['input']!r}"
    source = _source(location, flags, yaml_file)
    return SettingsError(f"{source}: {key}: {message}", param=key)


def _allowed(location: Location) -> list[str]:
    fields: type[BaseModel] | None = ClusterSettings
    for part in location:
        if fields is None or part not in fields.model_fields:
            return []
        fields = _section(fields.model_fields[str(part)].annotation)
    return list(fields.model_fields) if fields else []


def _source(location: Location, flags: Mapping[str, Any], yaml_file: YamlFile | None) -> str:
    value: Any = flags
    for part in location:
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is not None:
        return "command line"
    for length in range(len(location), 0, -1):
        name = _PREFIX + "__".join(str(part).upper() for part in location[:length])
        if name in os.environ:
            return f"environment variable {name}"
    if yaml_file is None:
        return "settings"
    for length in range(len(location), 0, -1):
        if (line := yaml_file.lines.get(location[:length])) is not None:
            return f"{yaml_file.path}, line {line}"
    return str(yaml_file.path)
