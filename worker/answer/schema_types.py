"""Which JSON types a schema allows, and conversion of unquoted values to JSON of these types."""

import json
from collections.abc import Mapping
from typing import Any

from shared.codec import strict_json

ALL_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
_MAX_REFERENCES = 64


def resolve(schema: Any, root: Mapping[str, Any]) -> Any:
    """Follow a chain of local references; returns an empty schema if a reference has no target."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        schema = _find(reference, root)
    return {}


def _find(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        return {}
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return {}
    return found


def json_types(schema: Any, root: Mapping[str, Any], depth: int = 16) -> frozenset[str]:
    """Return the types that a value may have: all of them if the schema has no restriction."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth == 0:
        return ALL_TYPES
    allowed = ALL_TYPES
    if (named := schema.get("type")) is not None:
        names = [named] if isinstance(named, str) else named
        allowed &= frozenset(names if isinstance(names, list) else ()) or ALL_TYPES
        if "number" in allowed:
            allowed |= {"integer"}
    if isinstance(values := schema.get("enum"), list):
        allowed &= frozenset(map(type_of, values))
    if "const" in schema:
        allowed &= {type_of(schema["const"])}
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list) and options:
            allowed &= frozenset().union(
                *(json_types(option, root, depth - 1) for option in options)
            )
    for option in schema.get("allOf") or []:
        allowed &= json_types(option, root, depth - 1)
    return allowed


def as_json(text: str, types: frozenset[str]) -> str:
    """Return a model's unquoted value as JSON: unchanged if the text is JSON of one of the types,
    else as a string. So `null` is null only if null is allowed, and numbers keep every digit."""
    if types - {"string"}:
        bare = text.strip()
        bare = _JSON_WORDS.get(bare, bare) if types & {"null", "boolean"} else bare
        try:
            kind = type_of(strict_json(bare))
        except (ValueError, RecursionError):
            kind = "string"
        if kind != "string" and kind in types:
            return bare
        if kind == "number" and "integer" in types and float(bare).is_integer():
            return bare
        if kind == "string" and bare[:1] == '"' and "string" not in types:
            return bare
    return json.dumps(text, ensure_ascii=False)


def typed_as_json(text: str, types: frozenset[str]) -> str:
    """Convert like `as_json` a value that the model declared as JSON: strings may be quoted."""
    bare = text.strip()
    if bare[:1] == '"' and "string" in types:
        try:
            strict_json(bare)
        except (ValueError, RecursionError):
            return as_json(text, types)
        return bare
    return as_json(text, types)


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def escaped(text: str) -> str:
    """Return a piece of a string with JSON's escapes, without quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
