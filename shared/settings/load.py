"""One frozen tree out of flags, environment and file; the first that names a key wins."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import orjson
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
from shared.messages.codec import shortened
from shared.settings.tree import ClusterSettings
from shared.settings.yaml_file import Location, YamlFile

CONFIG_VARIABLE = "CLUSTER_CONFIG"
DEFAULT_FILE = Path("config/cluster.yaml")
_PREFIX = "CLUSTER__"
_Leaf = tuple[tuple[str, ...], Any]


def load_settings(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    joined: Mapping[str, Any] | None = None,
) -> ClusterSettings:
    """Read the settings once, at the start of a process.

    Args:
        file: the YAML file; by default `$CLUSTER_CONFIG`, else `config/cluster.yaml` where
            it exists, else the defaults alone.
        flags: nested values from the command line; they win over everything.
        joined: what the cluster that this machine joined asks for. It holds, and nothing else may
            say otherwise, unless somebody else names a server (`nats`).

    Raises:
        SettingsError: names the source, the key, the value and what is allowed.
    """
    yaml_file = _open(file)
    values = yaml_file.values if yaml_file else {}
    _check_variables()
    given = dict(joined or {})
    if _names_server(flags or {}, values):
        given = {}

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
            file = InitSettingsSource(settings_cls, values)
            return init_settings, env_settings, file, InitSettingsSource(settings_cls, given)

    try:
        settings = Sources(**(flags or {}))
    except ValidationError as error:
        raise _explain(error, flags or {}, yaml_file) from None
    except PydanticSettingsError as error:
        raise SettingsError(f"environment: {error}; lists and mappings are JSON") from None
    for location, value in _leaves(given):
        if (said := _value_at(settings, location)) != value:
            key = ".".join(location)
            raise SettingsError(
                f"{_source(location, flags or {}, yaml_file)}: {key}: {shortened(repr(said))}, "
                f"but the cluster that this machine joined says {value!r}; remove one of them",
                param=key,
            )
    return settings


def _names_server(flags: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    variables = any(name.upper().startswith(f"{_PREFIX}NATS__") for name in os.environ)
    return variables or f"{_PREFIX}NATS" in os.environ or "nats" in flags or "nats" in values


def _leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[_Leaf]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _value_at(settings: BaseModel, location: Sequence[str]) -> Any:
    value: Any = settings
    for part in location:
        value = getattr(value, part)
    return value


def _open(file: Path | None) -> YamlFile | None:
    if file is not None:
        return YamlFile(file)
    if named := os.environ.get(CONFIG_VARIABLE):
        return YamlFile(Path(named))
    return YamlFile(DEFAULT_FILE) if DEFAULT_FILE.is_file() else None


def _check_variables() -> None:
    """Refuse CLUSTER__ variables that name no setting, or hold no JSON where that is needed;
    pydantic would pass over some, and name only the section of others."""
    for name, value in os.environ.items():
        if not name.upper().startswith(_PREFIX):
            continue
        shape: Any = ClusterSettings
        for part in name[len(_PREFIX) :].lower().split("__"):
            section = _section(shape)
            if section is not None and part in section.model_fields:
                shape = section.model_fields[part].annotation
            elif section is None and (inner := _value_shape(shape)) is not None:
                shape = inner  # a mapping: any key
            else:
                allowed = ", ".join(section.model_fields) if section else "nothing below this"
                raise SettingsError(
                    f"environment variable {name}: unknown setting {part!r}; allowed: {allowed}",
                    param=name,
                )
        if _is_complex(shape):
            _check_json(name, value)


def _check_json(name: str, value: str) -> None:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        raise SettingsError(
            f"environment variable {name}: lists and mappings are JSON", param=name
        ) from None


def _section(shape: Any) -> type[BaseModel] | None:
    """The section that a field of this type holds, itself or optionally."""
    if get_origin(shape) in (dict, list):
        return None
    candidates = (shape, *get_args(shape))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _value_shape(shape: Any) -> Any:
    """The type of the values of a mapping or list; None for anything else."""
    for candidate in (shape, *get_args(shape)):
        if get_origin(candidate) in (dict, list):
            return get_args(candidate)[-1]
    return None


def _is_complex(shape: Any) -> bool:
    return _section(shape) is not None or _value_shape(shape) is not None


def _explain(
    error: ValidationError, flags: Mapping[str, Any], yaml_file: YamlFile | None
) -> SettingsError:
    problem = error.errors(include_url=False)[0]
    location = problem["loc"]
    key = ".".join(map(shortened, location))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = f"unknown key; allowed here: {', '.join(_allowed(location[:-1]))}"
    elif "nats" not in location[:1] and not isinstance(problem["input"], dict | list):
        # But nothing where secrets may be.
        message = f"{message}, not {shortened(repr(problem['input']))}"
    source = _source(location, flags, yaml_file)
    return SettingsError(f"{source}: {key}: {message}", param=key)


def _allowed(location: Location) -> list[str]:
    shape: Any = ClusterSettings
    for part in location:
        section = _section(shape)
        if section is None:
            shape = _value_shape(shape)
        elif part in section.model_fields:
            shape = section.model_fields[str(part)].annotation
        else:
            return []
    section = _section(shape)
    return list(section.model_fields) if section else []


def _source(location: Location, flags: Mapping[str, Any], yaml_file: YamlFile | None) -> str:
    value: Any = flags
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
    for length in range(len(location), 0, -1):
        name = _PREFIX + "__".join(str(part).upper() for part in location[:length])
        if name in variables:
            return f"environment variable {variables[name]}"
    if yaml_file is None:
        return "settings"
    for length in range(len(location), 0, -1):
        if (line := yaml_file.lines.get(location[:length])) is not None:
            return f"{yaml_file.path}, line {line}"
    return str(yaml_file.path)
