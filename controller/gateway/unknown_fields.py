"""Fields that a request has and its shape does not know: OpenAI's and Anthropic's APIs get new ones
with each release of their clients, and most only tune what those services do."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from shared.codec import shortened

HEADER = "x-ignored-fields"
_MOST_BYTES = 1024
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_$@:*.-]")


def take_unknown_fields(request: BaseModel) -> list[str]:
    """Remove them at every depth; returns their paths, sorted, with `*` for a place in a list.

    Args:
        request: validated with `extra="allow"`. It is changed.
    """
    return sorted({".".join(path) for path in _taken(request, ())})


def header_value(paths: Sequence[str]) -> str:
    """As many of the paths as a header may hold; the names in them are a client's own."""
    value = ""
    for path in map(_plain, paths):
        longer = f"{value}, {path}" if value else path
        if len(longer) > _MOST_BYTES - len(", ..."):
            return f"{value}, ..."
        value = longer
    return value


def _taken(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    match value:
        case BaseModel():
            unknown = value.__pydantic_extra__
            if unknown and value.model_config.get("extra") != "allow":
                yield from ((*path, shortened(name)) for name in unknown)
                unknown.clear()
            for name in value.model_fields_set:
                yield from _taken(getattr(value, name, None), (*path, name))
        case list():
            for each in value:
                if isinstance(each, BaseModel):
                    yield from _taken(each, (*path, "*"))


def _plain(path: str) -> str:
    return _NOT_PLAIN.sub("?", path)
