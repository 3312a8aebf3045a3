"""Items of a conversation as they are stored, listed and gone on from."""

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
from shared.external_model import ExternalModel

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "cto",
    "reasoning": "rs",
}


def listed(
    items: Sequence[ExternalModel], unique: str, taken: Iterable[str]
) -> list[dict[str, Any]]:
    """Those of a request; each has an id that no other one of the conversation has.

    Args:
        unique: makes ids, with the items' numbers.
        taken: the ids of the items before.
    """
    known = set(taken)
    found = []
    for number, item in enumerate(items):
        shown = _shown(item)
        if shown.get("id") is None or shown["id"] in known:
            shown["id"] = f"{_PREFIXES.get(shown['type'], 'item')}_{unique}_i{number}"
        known.add(shown["id"])
        found.append(shown)
    return found


def without_extras(item: dict[str, Any]) -> dict[str, Any]:
    """An item of the output, as far as a conversation needs it."""
    kept = dict(item)
    if kept.get("content") or kept.get("summary"):
        kept.pop("encrypted_content", None)
    if kept["type"] == "message":
        parts = kept["content"]
        kept["content"] = [{k: v for k, v in part.items() if k != "logprobs"} for part in parts]
    return kept


def _shown(item: ExternalModel) -> dict[str, Any]:
    shown = item.model_dump(exclude_none=True)
    match item:
        case MessageItem():
            shown["content"] = [_part(part, item.role) for part in _parts(item)]
            shown.setdefault("status", "completed")
        case FunctionCallItem() | CustomCallItem() | CallOutputItem():
            shown.setdefault("status", "completed")
        case ReasoningItem():
            shown.setdefault("summary", [])
    return shown


def _parts(item: MessageItem) -> Sequence[Part]:
    if isinstance(item.content, str):
        return [Part(type="text", text=item.content)]
    return item.content


def _part(part: Part, role: str) -> dict[str, Any]:
    """Clients may call any of them just text."""
    shown = part.model_dump(exclude_none=True)
    if part.type in ("text", "input_text", "output_text"):
        shown["type"] = "output_text" if role == "assistant" else "input_text"
    if shown["type"] == "output_text":
        shown = {"annotations": [], "logprobs": [], **shown}
    return shown
