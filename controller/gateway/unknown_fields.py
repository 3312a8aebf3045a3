"""Unknown fields of requests: OpenAI's and Anthropic's clients send new fields with each release,
most of which only tune the services of OpenAI and Anthropic."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from shared.codec import shortened

HEADER = "x-ignored-fields"
_MAX_BYTES = 1024
_UNSAFE = re.compile(r"[^A-Za-z0-9_$@:*.-]")


def remove_unknown_fields(request: BaseModel) -> list[str]:
    """Remove unknown fields at every depth; return their sorted paths, with `*` for a list index.

    Args:
        request: validated with `extra="allow"`; is mutated.
    """
    return sorted({".".join(path) for path in _removed(request, ())})


def header_value(paths: Sequence[str]) -> str:
    """Return a header value with as many paths as fit; clients choose the names in the paths."""
    value = ""
    for path in map(_sanitized, paths):
        longer = f"{value}, {path}" if value else path
        if len(longer) > _MAX_BYTES - len(", ..."):
            return f"{value}, ..."
        value = longer
    return value


def _removed(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    match value:
        case BaseModel():
            unknown = value.__pydantic_extra__
            if unknown and value.model_config.get("extra") != "allow":
                yield from ((*path, shortened(name)) for name in unknown)
                unknown.clear()
            for name in value.model_fields_set:
                yield from _removed(getattr(value, name, None), (*path, name))
        case list():
            for element in value:
                if isinstance(element, BaseModel):
                    yield from _removed(element, (*path, "*"))


def _sanitized(path: str) -> str:
    return _UNSAFE.sub("?", path)
