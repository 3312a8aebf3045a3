"""JSON schemas of clients, made ready for llguidance."""

from collections.abc import Iterator, Mapping
from typing import Any

from worker.grammar import regex

GUIDANCE = "x-guidance"
"""With this key a schema gives llguidance options: only we do."""

_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,40}"
"""Between JSON's tokens: without an end some models would write nothing else."""

_ESCAPES = 'nrbtf\\"'
"""Of strings. With `\\u` a name that stands in `properties` could be written as another one, and
half a surrogate pair come."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with schemas by name."""
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    "additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not", "if",
    "then", "else", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """Each schema within a schema, and the path to it."""
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
    """The keys of a step to a subschema: of a keyword, and of a name or a place in it."""
    keyword, _, rest = step.partition(".")
    return [keyword, rest] if isinstance(schema[keyword], list) or keyword in _MAPS else [keyword]


def cleaned(schema: Any) -> Any:
    """A schema without options for llguidance, wherever they stand, and with patterns as it
    understands them."""
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
    """A clean schema with our own options; a `lenient` one need not be enforced whole."""
    whole = schema if isinstance(schema, dict) else {"allOf": [schema]}
    options = {
        "whitespace_pattern": _WHITE_SPACE,
        "json_allowed_escapes": _ESCAPES,
        "lenient": lenient,
    }
    return {**whole, GUIDANCE: options}


def arguments_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of a tool's arguments: an object, of the properties that are named if any are."""
    schema = dict(cleaned(dict(parameters)))
    schema.setdefault("type", "object")
    names = {"properties", "additionalProperties", "patternProperties", "unevaluatedProperties"}
    if names & schema.keys() == {"properties"} and "allOf" not in schema and "$ref" not in schema:
        schema["additionalProperties"] = False
    return schema


def moved(schema: Any, to: str) -> Any:
    """A schema that is to stand at a place of another one, with its references led there."""
    match schema:
        case dict():
            led = {key: moved(value, to) for key, value in schema.items()}
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference.startswith("#"):
                led["$ref"] = f"{to}{reference[1:]}"
            return led
        case list():
            return [moved(each, to) for each in schema]
        case _:
            return schema
