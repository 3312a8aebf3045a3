"""Where the references of a JSON schema lead."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

NOWHERE: Any = object()
"""A reference that leads to no place of its own schema, or to one that only llguidance finds."""


def target(reference: Any, root: Any) -> Any:
    """What a local reference leads to, or `NOWHERE`."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return root if reference == "" else NOWHERE
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return NOWHERE
    return NOWHERE if not reference[1:].startswith("/") and reference != "#" else found


def pointer(path: list[str]) -> str:
    """The keys and indices on the way to a place, as a reference to it."""
    parts = (part.replace("~", "~0").replace("/", "~1") for part in path)
    return "".join(["#", *(f"/{quote(part, safe='$~')}" for part in parts)])
