"""The session of a conversation, from what its caller calls it, or from how it began."""

import hashlib
import re
from collections.abc import Sequence

import orjson

from shared.ids import DERIVED_SESSION, ID_PATTERN

_ID = re.compile(ID_PATTERN)


def session_id(name: str) -> str:
    """The name itself where it can be an id; else a hash of it."""
    if _ID.fullmatch(name):
        return name
    return f"named-{_digest(name.encode())}"


def derived_name(beginning: Sequence[tuple[str, str]]) -> str:
    """A name for a conversation that nobody named, from the roles and texts it began with."""
    return f"{DERIVED_SESSION}{_digest(orjson.dumps(beginning))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
