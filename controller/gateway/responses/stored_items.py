"""Converts items of a conversation to the form in which they are stored and listed."""

from collections.abc import Iterable, Sequence
from typing import Any

from controller.gateway.responses.items import (
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    Part,
    ReasoningItem,
)
from shared.codec import StrictInput

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "cto",
    "reasoning": "rs",
}


def stored_input(
    items: Sequence[StrictInput], unique: str, previous_ids: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the input items of a request, each with an id that is unique in the conversation.

    Args:
        unique: part of new ids, besides the item's number.
        previous_ids: the ids of all earlier items of the conversation.
    """
    ids = set(previous_ids)
    stored_items = []
    for number, item in enumerate(items):
        stored = _stored(item)
        if stored.get("id") is None or stored["id"] in ids:
            stored["id"] = f"{_PREFIXES.get(stored['type'], 'item')}_{unique}_i{number}"
        ids.add(stored["id"])
        stored_items.append(stored)
    return stored_items


def stored_output(item: dict[str, Any]) -> dict[str, Any]:
    """Return an output item without what later turns do not need: log-probabilities, and packed
    reasoning that is also readable."""
    stored = dict(item)
    if stored.get("content") or stored.get("summary"):
        stored.pop("encrypted_content", None)
    if stored["type"] == "message":
        parts = stored["content"]
        stored["content"] = [{k: v for k, v in part.items() if k != "logprobs"} for part in parts]
    return stored


def _stored(item: StrictInput) -> dict[str, Any]:
    stored = item.model_dump(exclude_none=True)
    match item:
        case MessageItem():
            stored["content"] = [_part(part, item.role) for part in _parts(item)]
            stored.setdefault("status", "completed")
        case FunctionCallItem() | CustomCallItem() | CallOutputItem():
            stored.setdefault("status", "completed")
        case ReasoningItem():
            stored.setdefault("summary", [])
    return stored


def _parts(item: MessageItem) -> Sequence[Part]:
    if isinstance(item.content, str):
        return [Part(type="text", text=item.content)]
    return item.content


def _part(part: Part, role: str) -> dict[str, Any]:
    """Return a part. The type of text follows the role: clients may send `text` for any role."""
    stored = part.model_dump(exclude_none=True)
    if part.type in ("text", "input_text", "output_text"):
        stored["type"] = "output_text" if role == "assistant" else "input_text"
    if stored["type"] == "output_text":
        stored = {"annotations": [], "logprobs": [], **stored}
    return stored
