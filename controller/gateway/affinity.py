"""The affinity of a request, which routes the requests of one conversation to the worker that has
it cached: an id from the program, or a hash of how the conversation began. Programs send whole
conversations, so these requests need no order."""

import hashlib
import re
from collections.abc import Mapping, Sequence

import orjson

from shared.ids import ID_PATTERN

_HEADERS = (
    "x-claude-code-session-id", "thread-id", "session-id", "x-session-id", "x-session-affinity",
    "x-opencode-session",
)  # fmt: skip
"""Headers of Claude Code, Codex, OpenCode and others; the most specific first."""
_ID = re.compile(ID_PATTERN)


def header_affinity(headers: Mapping[str, str]) -> str | None:
    """Return the conversation's name from the headers; None if they have none."""
    return next((name for key in _HEADERS if (name := headers.get(key))), None)


def as_id(name: str) -> str:
    """Return the name if it is a valid id, else a hash of it."""
    if _ID.fullmatch(name):
        return name
    return f"named-{_digest(name.encode(errors='surrogatepass'))}"


def derived_affinity(beginning: Sequence[tuple[str, str]]) -> str:
    """Return an affinity for a conversation without a name, from its first roles and texts."""
    return f"began-{_digest(orjson.dumps(beginning))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
