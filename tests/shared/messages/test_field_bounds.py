"""Every field of a client's message has a bound: of its length, its number, or its range."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from shared.messages.control import RequestQuery, ResendQuery
from shared.messages.logs import RecentLogsQuery
from shared.messages.request import InferenceRequest
from shared.messages.request_list import RequestListQuery

_OF_CLIENTS = [InferenceRequest, RequestQuery, ResendQuery, RequestListQuery, RecentLogsQuery]

_TEXTS = {
    ("messages", "content"), ("messages", "content", "text"), ("messages", "reasoning"),
    ("messages", "tool_calls", "function", "arguments"), ("prompt",), ("input",), ("query",),
    ("tools", "function", "description"), ("response_format", "json_schema", "description"),
}  # fmt: skip
"""As long as the request: the size of the body bounds them."""
_ANY_JSON = {
    ("chat_template_kwargs",), ("tools", "function", "parameters"),
    ("response_format", "json_schema", "schema"), ("structured_outputs", "json"),
}  # fmt: skip
"""Any JSON within `json_bounds`, and `check_schema` where it is a schema."""
_OURS = {("protocol",)}

Path = tuple[str, ...]


def _unbounded(schema: dict[str, Any], whole: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    for union in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(union, []):
            yield from _unbounded(branch, whole, path)
    if path in _TEXTS | _ANY_JSON | _OURS or "enum" in schema or "const" in schema:
        return
    match schema.get("type"):
        case "string":
            if "maxLength" not in schema and "{1," not in schema.get("pattern", ""):
                yield path
        case "integer":
            if not _is_ranged(schema):
                yield path
        case "array":
            if "maxItems" not in schema:
                yield path
            yield from _unbounded(schema["items"], whole, path)
        case "object":
            for name, each in schema.get("properties", {}).items():
                yield from _unbounded(each, whole, (*path, name))
            maps = [*schema.get("patternProperties", {}).values()]
            if isinstance(schema.get("additionalProperties"), dict):
                maps.append(schema["additionalProperties"])
            if maps and "maxProperties" not in schema:
                yield path
            for each in maps:
                yield from _unbounded(each, whole, path)
        case "number" | "boolean" | "null":  # 64 bits, finite
            pass
        case None if not any(union in schema for union in ("anyOf", "oneOf", "allOf")):
            yield path
        case _:
            pass


def _is_ranged(schema: dict[str, Any]) -> bool:
    return bool(
        {"minimum", "exclusiveMinimum"} & set(schema)
        and {"maximum", "exclusiveMaximum"} & set(schema)
    )


@pytest.mark.parametrize("kind", _OF_CLIENTS)
def test_every_field_has_a_bound(kind: type[BaseModel]) -> None:
    schema = kind.model_json_schema()
    assert set(_unbounded(schema, schema)) == set()


def test_the_walk_finds_what_has_none() -> None:
    class Open(BaseModel):
        text: str
        number: int | None
        names: list[str]
        map: dict[str, int]
        thing: Any

    schema = Open.model_json_schema()
    found = set(_unbounded(schema, schema))
    assert found == {("text",), ("number",), ("names",), ("map",), ("thing",)}
