"""Ids of tool calls in the form that a model family's chat template requires."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_SHORT = re.compile(r"[A-Za-z0-9]{9}")

WriteId = Callable[[str, str, int], str]
"""Arguments: the id of a call, the name of its function, the number of calls before it in the
conversation."""


def short_id(call_id: str, _name: str = "", _number: int = 0) -> str:
    """Return nine letters and digits: the id itself if it has that form, else a hash of the id."""
    if _SHORT.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(errors="surrogatepass"), digest_size=5).hexdigest()[:9]


def numbered_id(_call_id: str, name: str, number: int) -> str:
    """Return an id in Kimi's form."""
    return f"functions.{name}:{number}"


WRITE_ID: Mapping[str, WriteId] = {
    "mistral": short_id,
    "mistral_args": short_id,
    "kimi_k2": numbered_id,
}
"""By name of the tool format; the other formats accept any id."""


def written_ids(messages: Iterable[Mapping[str, Any]], write: WriteId | None) -> dict[str, str]:
    """Return the id that the template gets for each call of a conversation, by the call's id."""
    if write is None:
        return {}
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {
        call["id"]: write(call["id"], call["function"]["name"], number)
        for number, call in enumerate(calls)
        if call.get("id") is not None
    }
