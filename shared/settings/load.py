"""Load one frozen tree from flags, environment and file; the first source of a key wins."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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

from shared.codec import shortened
from shared.errors import SettingsError
from shared.settings.overrides import Values, WorkerProperties, merged, overridden
from shared.settings.rolled_out import RolledOutVersion, combined
from shared.settings.setting_origins import PREFIX, SettingOrigins, section, value_shape
from shared.settings.tree import ClusterSettings
from shared.settings.yaml_file import YamlFile

CONFIG_VARIABLE = "CLUSTER_CONFIG"
DEFAULT_FILE = Path("config/cluster.yaml")
_Leaf = tuple[tuple[str, ...], Any]


def load_settings(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    joined: Mapping[str, Any] | None = None,
    *,
    rolled_out: RolledOutVersion | None = None,
    machine: Callable[[ClusterSettings], WorkerProperties] | None = None,
) -> ClusterSettings:
    """Read the settings once, at the start of a process.

    A variable that is `null` sets None, if its setting allows None.

    Args:
        file: the YAML file; by default `$CLUSTER_CONFIG`, else `config/cluster.yaml` if it exists,
            else the defaults alone.
        flags: nested values from the command line; they win over all other sources.
        joined: the settings of this machine's membership. No other source may contradict them;
            they are not used if another source sets `nats`.
        rolled_out: replaces the file, except for the settings of a machine.
        machine: this worker; without it `overrides` are only validated.

    Raises:
        SettingsError: names the source, the key, the value and what is allowed.
    """
    own = _open(file)
    files = [own] if own else []
    values = own.values if own else {}
    if rolled_out is not None:
        version = YamlFile(f"cluster.yaml, version {rolled_out.version}", rolled_out.text)
        files.insert(0, version)
        values = combined(values, version.values)
    _check_variables()
    origin = SettingOrigins(flags or {}, files)
    membership = {} if _sets_nats(origin.flags, values) else dict(joined or {})
    settings = _build(values, membership, origin)
    _check_overrides(settings, origin)
    if machine is not None and settings.overrides:
        settings = _build(overridden(values, settings, machine(settings)), membership, origin)
    for location, value in _leaves(membership):
        if (found := _value_at(settings, location)) != value:
            key = ".".join(location)
            raise SettingsError(
                f"{origin.of(location)}: {key}: {shortened(repr(found))}, "
                f"but the cluster that this machine joined says {value!r}; remove one of them",
                param=key,
            )
    return settings


def read_text(text: str, name: str, machine: WorkerProperties | None = None) -> ClusterSettings:
    """Return the settings of a file for other machines, without other sources.

    Args:
        name: of the file, for errors.

    Raises:
        SettingsError: as `load_settings`.
    """
    file = YamlFile(name, text)
    origin = SettingOrigins({}, [file])
    values = combined({}, file.values)
    settings = _build(values, {}, origin, environment=False)
    _check_overrides(settings, origin)
    if machine is not None:
        values = overridden(values, settings, machine)
        settings = _build(values, {}, origin, environment=False)
    return settings


def _build(
    values: Values, joined: Values, origin: SettingOrigins, *, environment: bool = True
) -> ClusterSettings:
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
            variables = (env_settings,) if environment else ()
            return init_settings, *variables, file, InitSettingsSource(settings_cls, joined)

    try:
        return Sources(**origin.flags)
    except ValidationError as error:
        raise origin.explain(error) from None
    except PydanticSettingsError as error:
        raise SettingsError(f"environment: {error}; lists and mappings are JSON") from None


def _check_overrides(settings: ClusterSettings, origin: SettingOrigins) -> None:
    """Validate each override alone, as on a machine that only it matches."""
    for index, override in enumerate(settings.overrides):
        for name, values in (("worker", override.worker), ("logging", override.logging)):
            base: BaseModel = getattr(settings, name)
            try:
                type(base).model_validate(merged(base.model_dump(), values))
            except ValidationError as error:
                raise origin.explain(error, at=("overrides", index, name), of=(name,)) from None


def _sets_nats(flags: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    variables = any(name.upper().startswith(f"{PREFIX}NATS__") for name in os.environ)
    return variables or f"{PREFIX}NATS" in os.environ or "nats" in flags or "nats" in values


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


def settings_file(file: Path | None) -> Path | None:
    """Return the file that `load_settings` reads; None for the defaults alone."""
    if file is not None:
        return file
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _open(file: Path | None) -> YamlFile | None:
    path = settings_file(file)
    return YamlFile(path) if path is not None else None


def _check_variables() -> None:
    """Reject CLUSTER__ variables that name no setting, or are not JSON where that is required.
    Pydantic would ignore some, and report only the section of others."""
    for name, value in os.environ.items():
        if not name.upper().startswith(PREFIX):
            continue
        shape: Any = ClusterSettings
        for part in name[len(PREFIX) :].lower().split("__"):
            inside = section(shape)
            if inside is not None and part in inside.model_fields:
                shape = inside.model_fields[part].annotation
            elif inside is None and (inner := value_shape(shape)) is not None:
                shape = inner  # a mapping: any key
            else:
                allowed = ", ".join(inside.model_fields) if inside else "nothing below this"
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


def _is_complex(shape: Any) -> bool:
    return section(shape) is not None or value_shape(shape) is not None
