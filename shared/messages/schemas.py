"""Limits of JSON schemas from outside: larger ones are rejected before they are compiled."""

from collections.abc import Mapping
from typing import Any

import orjson

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 20_000


def check_schema(schema: Any) -> None:
    """Reject a value that is too large, too deep, or not a schema.

    Raises:
        ValueError: with the problem, and its place in the schema.
    """
    if not isinstance(schema, Mapping | bool):
        raise ValueError("a schema is an object")
    nodes, pending = 0, [(schema, "", 1)]
    while pending:
        value, path, depth = pending.pop()
        nodes += 1
        if nodes > MAX_SCHEMA_NODES:
            raise ValueError(f"it has more than {MAX_SCHEMA_NODES} values")
        if depth > MAX_SCHEMA_DEPTH:
            levels = f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels"
            raise ValueError(f"{levels} at {_shortened(path[1:])}")
        match value:
            case dict():
                pending += [(each, f"{path}.{key}", depth + 1) for key, each in value.items()]
            case list():
                pending += [(each, f"{path}.{at}", depth + 1) for at, each in enumerate(value)]
    try:
        size = len(orjson.dumps(schema))
    except orjson.JSONEncodeError:  # a number of more than 64 bits, a lone surrogate
        raise ValueError("it holds a number or a character beyond JSON's") from None
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"{size} bytes; at most {MAX_SCHEMA_BYTES} are allowed")


def _shortened(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:100]}...{path[-90:]}"
