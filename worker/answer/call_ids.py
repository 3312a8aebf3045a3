"""The ids of tool calls as a family's chat templates demand them."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_SHORT = re.compile(r"[A-Za-z0-9]{9}")

WriteId = Callable[[str, str, int], str]
"""From the id of a call, the name of its function, and how many calls the conversation had before.
"""


def short_id(call_id: str, _name: str = "", _number: int = 0) -> str:
    """Nine letters and digits: always the same for an id, and the id where it has that form."""
    if _SHORT.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(errors="surrogatepass"), digest_size=5).hexdigest()[:9]


def numbered_id(_call_id: str, name: str, number: int) -> str:
    """As Kimi writes it."""
    return f"functions.{name}:{number}"


WRITE_ID: Mapping[str, WriteId] = {
    "mistral": short_id,
    "mistral_args": short_id,
    "kimi_k2": numbered_id,
}
"""By tool format; the others take any id."""


def written_ids(messages: Iterable[Mapping[str, Any]], write: WriteId | None) -> dict[str, str]:
    """The ids of the calls in a conversation, and what the template gets for each."""
    if write is None:
        return {}
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {
        call["id"]: write(call["id"], call["function"]["name"], number)
        for number, call in enumerate(calls)
        if call.get("id") is not None
    }
