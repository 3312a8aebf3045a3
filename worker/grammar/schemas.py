"""Preparation of clients' JSON schemas for llguidance."""

from collections.abc import Iterator, Mapping
from typing import Any

from worker.grammar import regex

GUIDANCE = "x-guidance"
"""Key of llguidance's options in a schema; removed from clients' schemas."""

_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,40}"
"""Allowed between JSON's tokens; bounded, as some models would write white space for ever."""

_ESCAPES = 'nrbtf\\"'
"""Escapes in strings. `\\u` is not allowed: it could spell a name of `properties` in another way,
or write half a surrogate pair."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value is a map of schemas by name."""
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    "additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not", "if",
    "then", "else", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield each direct subschema of a schema with its step: a keyword, and a name or an index."""
    if not isinstance(schema, dict):
        return
    for key in _MAPS:
        if isinstance(found := schema.get(key), dict):
            for name, each in found.items():
                yield f"{key}.{name}", each
    for key in (*_LISTS, "items"):
        if isinstance(found := schema.get(key), list):
            for number, each in enumerate(found):
                yield f"{key}.{number}", each
    for key in _SINGLE:
        if isinstance(found := schema.get(key), dict):
            yield key, found


def steps(schema: Any, step: str) -> list[str]:
    """Return the keys of a step to a subschema: the keyword, and the name or index, if any."""
    keyword, _, rest = step.partition(".")
    return [keyword, rest] if isinstance(schema[keyword], list) or keyword in _MAPS else [keyword]


def cleaned(schema: Any) -> Any:
    """Return a schema without options for llguidance at any depth, and with patterns rewritten by
    `regex.within_json`."""
    if not isinstance(schema, dict):
        return schema
    clean: dict[str, Any] = {}
    for key, value in schema.items():
        if key == GUIDANCE:
            continue
        if key in _MAPS and isinstance(value, dict):
            clean[key] = {name: cleaned(each) for name, each in value.items()}
        elif key in (*_LISTS, "items") and isinstance(value, list):
            clean[key] = [cleaned(each) for each in value]
        elif key in _SINGLE:
            clean[key] = cleaned(value)
        elif key == "pattern" and isinstance(value, str):
            clean[key] = regex.within_json(value)
        else:
            clean[key] = value
    return clean


def with_options(schema: Any, *, lenient: bool = False) -> dict[str, Any]:
    """Return a cleaned schema with our options. `lenient` ignores keywords that llguidance cannot
    enforce."""
    whole = schema if isinstance(schema, dict) else {"allOf": [schema]}
    options = {
        "whitespace_pattern": _WHITE_SPACE,
        "json_allowed_escapes": _ESCAPES,
        "lenient": lenient,
    }
    return {**whole, GUIDANCE: options}


def arguments_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments: an object; without other properties if the schema
    names any."""
    schema = dict(cleaned(dict(parameters)))
    schema.setdefault("type", "object")
    names = {"properties", "additionalProperties", "patternProperties", "unevaluatedProperties"}
    if names & schema.keys() == {"properties"} and "allOf" not in schema and "$ref" not in schema:
        schema["additionalProperties"] = False
    return schema


def rebased(schema: Any, to: str) -> Any:
    """Return a schema with its local references adjusted for its new position `to` in another
    schema."""
    match schema:
        case dict():
            led = {key: rebased(value, to) for key, value in schema.items()}
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference.startswith("#"):
                led["$ref"] = f"{to}{reference[1:]}"
            return led
        case list():
            return [rebased(each, to) for each in schema]
        case _:
            return schema
