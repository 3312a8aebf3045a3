"""What requests of one conversation share, so that they go where it is cached: the name that its
program gives it, or how it began. Programs send conversations whole, so nothing needs an order."""

import hashlib
import re
from collections.abc import Mapping, Sequence

import orjson

from shared.ids import ID_PATTERN

_HEADERS = (
    "x-claude-code-session-id", "thread-id", "session-id", "x-session-id", "x-session-affinity",
    "x-opencode-session",
)  # fmt: skip
"""Of Claude Code, Codex, OpenCode and others; the narrowest first."""
_ID = re.compile(ID_PATTERN)


def header_affinity(headers: Mapping[str, str]) -> str | None:
    """The name in a request's headers, if there is one."""
    return next((name for key in _HEADERS if (name := headers.get(key))), None)


def as_id(name: str) -> str:
    """The name itself where it can be an id; else a hash of it."""
    if _ID.fullmatch(name):
        return name
    return f"named-{_digest(name.encode(errors='surrogatepass'))}"


def derived_affinity(beginning: Sequence[tuple[str, str]]) -> str:
    """A name for a conversation that nobody named, from the roles and texts it began with."""
    return f"began-{_digest(orjson.dumps(beginning))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
