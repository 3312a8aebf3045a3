"""`null` in an environment variable: None where a setting admits it, and else an error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import orjson
import pytest
from pydantic import BaseModel

from shared.errors import SettingsError
from shared.settings import ClusterSettings, load_settings
from shared.settings.overrides import merged
from shared.settings.setting_origins import PREFIX, section, value_shape

_EXAMPLES: list[Any] = [
    1,
    "a",
    "mistral",
    "embeddings",
    ["a"],
    [{"model": "a"}],
    {},
    {"cert_file": "a", "key_file": "a"},
    "http://collector:4318",
]
"""For every optional setting one of these is a valid value."""
_ENTRY = "coder"
"""The key of an entry in a mapping of sections."""
_REQUIRED = {
    "models": {_ENTRY: {"path": "a"}},
    "gateway": {"tls": {"cert_file": "a", "key_file": "a"}},
}
"""What has no default, where a variable names something beside it."""

Location = tuple[str, ...]


class Setting(NamedTuple):
    location: Location
    optional: bool

    @property
    def variable(self) -> str:
        return PREFIX + "__".join(self.location).upper()


def settings_below(shape: type[BaseModel], above: Location = ()) -> Iterator[Setting]:
    """Every setting that a variable can name, sections included."""
    for name, field in shape.model_fields.items():
        location = (*above, name)
        yield Setting(location, type(None) in get_args(field.annotation))
        if (inside := section(field.annotation)) is not None:
            yield from settings_below(inside, location)
        elif isinstance(field.default, dict) and (entry := value_shape(field.annotation)):
            if (inside := section(entry)) is not None:
                yield from settings_below(inside, (*location, _ENTRY))


SETTINGS = list(settings_below(ClusterSettings))
OPTIONAL = [setting for setting in SETTINGS if setting.optional]
NEEDED = [setting for setting in SETTINGS if not setting.optional]


def value_at(settings: ClusterSettings, location: Location) -> Any:
    value: Any = settings
    for part in location:
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def nested(location: Location, value: Any) -> Any:
    for part in reversed(location):
        value = {part: value}
    return value


def written(file: Path, location: Location, value: Any) -> ClusterSettings:
    """The settings of a file that says this, and what is required."""
    file.write_bytes(orjson.dumps(merged(_REQUIRED, nested(location, value))))
    return load_settings(file)


@pytest.fixture
def filled(file: Path, request: pytest.FixtureRequest) -> Setting:
    """An optional setting that the file gives a value."""
    setting: Setting = request.param
    for value in _EXAMPLES:
        try:
            settings = written(file, setting.location, value)
        except SettingsError:
            continue
        assert value_at(settings, setting.location) is not None
        return setting
    raise AssertionError(f"{setting.variable}: no example is valid; add one")


def test_optional_settings_of_each_kind_are_found() -> None:
    names = {setting.variable for setting in OPTIONAL}
    assert names >= {
        "CLUSTER__NATS__TLS", "CLUSTER__NATS__TLS__CA_FILE", "CLUSTER__NATS__TOKEN",
        "CLUSTER__MODELS__CODER__TTL_S", "CLUSTER__CONTROLLER__ROLLOUT__GATES__THROUGHPUT",
        "CLUSTER__WORKER__MODELS", "CLUSTER__WORKER__REQUEST_QUEUE__MAX_WAIT_MS",
    }  # fmt: skip


@pytest.mark.parametrize("filled", OPTIONAL, ids=lambda each: each.variable, indirect=True)
def test_null_unsets_an_optional_setting(
    filled: Setting, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(filled.variable, "null")
    assert value_at(load_settings(file), filled.location) is None


@pytest.mark.parametrize("filled", OPTIONAL, ids=lambda each: each.variable, indirect=True)
def test_null_inside_the_json_of_a_section_unsets_an_optional_setting(
    filled: Setting, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, *below = filled.location
    monkeypatch.setenv(PREFIX + top.upper(), orjson.dumps(nested(tuple(below), None)).decode())
    assert value_at(load_settings(file), filled.location) is None


@pytest.mark.parametrize("setting", NEEDED, ids=lambda each: each.variable)
def test_null_for_any_other_setting_is_refused_by_the_name_of_the_variable(
    setting: Setting, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(file, (), {})
    monkeypatch.setenv(setting.variable, "null")
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    assert caught.value.message.startswith(f"environment variable {setting.variable}: ")
    assert "Input should be" in caught.value.message
