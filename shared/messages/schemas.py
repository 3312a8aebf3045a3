"""Limits of JSON schemas from outside: larger ones are rejected before they are compiled."""

from collections.abc import Mapping
from typing import Any

import orjson

from shared.messages.json_bounds import MAX_DEPTH, containers_by_depth

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_NODES = 20_000


def check_schema(schema: Any) -> None:
    """Reject a value that is too large, too deep, or not a schema.

    Raises:
        ValueError: with the problem, and its place in the schema.
    """
    if not isinstance(schema, Mapping | bool):
        raise ValueError("a schema is an object")
    nodes = 1
    for depth, level in enumerate(containers_by_depth(schema), start=1):
        nodes += sum(map(len, level))
        if nodes > MAX_SCHEMA_NODES:
            raise ValueError(f"it has more than {MAX_SCHEMA_NODES} values")
        if depth > MAX_DEPTH:
            levels = f"it is nested deeper than {MAX_DEPTH} levels"
            raise ValueError(f"{levels} at {_shortened(_path_down(schema))}")
    try:
        size = len(orjson.dumps(schema))
    except orjson.JSONEncodeError:  # a number of more than 64 bits, a lone surrogate
        raise ValueError("it holds a number or a character beyond JSON's") from None
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"{size} bytes; at most {MAX_SCHEMA_BYTES} are allowed")


def _path_down(schema: Any) -> str:
    """Return the path to a value at the first depth that is too much."""
    pending: list[tuple[Any, tuple[object, ...]]] = [(schema, ())]
    while pending:
        value, path = pending.pop()
        if len(path) == MAX_DEPTH:
            return ".".join(map(str, path))
        named = value.items() if isinstance(value, dict) else enumerate(value)
        pending += [(each, (*path, key)) for key, each in named if isinstance(each, dict | list)]
    return ""


def _shortened(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:100]}...{path[-90:]}"
