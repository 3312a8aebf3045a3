"""Grafana's schema of a dashboard, as its SDK for Python has it (grafana-foundation-sdk, generated
from Grafana's own schema).

The SDK reads a dashboard into typed objects without checking it: a field that it does not know is
dropped, a value of another type is kept, a required field gets a default. So here the objects are
written again and compared with the file, and their values with the types of the SDK's fields.
Not checked: what the schema leaves open (a panel's `type` and the syntax of a query, which
Prometheus checks in test_prometheus), and how Grafana draws it.
"""

import enum
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

_OPTIONAL = {
    "allowCustomValue", "auto", "auto_count", "auto_min", "fiscalYearStartMonth", "includeAll",
    "multi", "repeatDirection", "skipUrlSync", "text", "transparent", "value",
}  # fmt: skip
"""Optional fields of the schema that have a default, which the SDK writes."""
_UNITS = {value for name, value in vars(units).items() if isinstance(value, str) and name[0] != "_"}


def findings(content: bytes) -> list[str]:
    """What of a dashboard is not as Grafana's schema has it."""
    register_default_plugins()
    given = json.loads(content)
    read = Dashboard.from_json(given)
    written = json.loads(JSONEncoder().encode(read))
    return [*_differences(given, written, ""), *_wrong_types(read, Dashboard, ""), *_unknown(given)]


def _differences(given: Any, written: Any, path: str) -> Iterator[str]:
    match given, written:
        case dict(), dict():
            for name in given.keys() - written.keys():
                yield f"{path}.{name}: the schema has no such field"
            for name in written.keys() - given.keys() - _OPTIONAL:
                yield f"{path}.{name}: a required field is missing"
            for name in given.keys() & written.keys():
                yield from _differences(given[name], written[name], f"{path}.{name}")
        case list(), list() if len(given) == len(written):
            for number, pair in enumerate(zip(given, written, strict=True)):
                yield from _differences(*pair, f"{path}[{number}]")
        case _ if given != written:
            yield f"{path}: {given!r} is read as {written!r}"


def _wrong_types(value: Any, hint: Any, path: str) -> Iterator[str]:
    if not _fits(value, hint):
        yield f"{path}: {value!r} is not {hint}"
    elif isinstance(value, list):
        element = next(iter(typing.get_args(_without_none(hint))), object)
        for number, each in enumerate(value):
            yield from _wrong_types(each, element, f"{path}[{number}]")
    elif type(value).__module__.startswith("grafana_foundation_sdk."):
        for name, field in typing.get_type_hints(type(value)).items():
            yield from _wrong_types(getattr(value, name), field, f"{path}.{name}")


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    kind = origin or hint
    if kind in (Any, object):
        return True
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return value in [member.value for member in kind]
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _without_none(hint: Any) -> Any:
    """Return `X` of `Optional[X]`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(each for each in typing.get_args(hint) if each is not type(None))
    return hint


def _unknown(given: dict[str, Any]) -> Iterator[str]:
    for panel in given["panels"]:
        if panel["type"] != "row":
            unit = panel["fieldConfig"]["defaults"]["unit"]
            if unit not in _UNITS:
                yield f"{panel['title']}: Grafana has no unit {unit!r}"
