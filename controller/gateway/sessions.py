"""The session of a conversation, from what its caller calls it."""

import hashlib
import re

from shared.ids import ID_PATTERN

_ID = re.compile(ID_PATTERN)


def session_id(name: str) -> str:
    """The name itself where it can be an id; else a hash of it."""
    if _ID.fullmatch(name):
        return name
    return f"named-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
