"""Input items of OpenAI's Responses API, and what they mean to the cluster."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from controller.gateway.responses.names import flat_name, wrapped_input
from controller.gateway.responses.output import unseal
from shared.messages.edge import Edge
from shared.messages.request import MAX_CALLS

MAX_REASONING_BYTES = 2_000_000
_BETWEEN_PARTS = "\n\n"
_Id = Annotated[str, Field(max_length=512)]
_CallId = Annotated[str, Field(min_length=1, max_length=256)]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Status = Literal["in_progress", "completed", "incomplete"]


_KINDS: dict[str, str] = {
    "message": "message",
    "function_call": "function_call",
    "custom_tool_call": "custom_tool_call",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "reasoning": "reasoning",
    "item_reference": "reference",
}


class Part(Edge):
    """One part of a message or a result; text is the only kind that is served."""

    type: Literal["input_text", "output_text", "text", "refusal", "input_image", "input_file",
                  "input_audio", "summary_text", "reasoning_text"]  # fmt: skip
    text: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(fail_fast=True)] | None = None
    logprobs: Annotated[list[Any], Field(fail_fast=True)] | None = None

    @property
    def is_text(self) -> bool:
        return self.type not in ("input_image", "input_file", "input_audio")


_Parts = Annotated[list[Part], Field(fail_fast=True)]


class MessageItem(Edge):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | _Parts
    type: Literal["message"] = "message"
    id: _Id | None = None
    status: _Status | None = None
    phase: str | None = None


class FunctionCallItem(Edge):
    type: Literal["function_call"]
    call_id: _CallId
    name: _Name
    arguments: str
    namespace: _Name | None = None
    id: _Id | None = None
    status: _Status | None = None


class CustomCallItem(Edge):
    type: Literal["custom_tool_call"]
    call_id: _CallId
    name: _Name
    input: str
    namespace: _Name | None = None
    id: _Id | None = None
    status: _Status | None = None


class CallOutputItem(Edge):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: _CallId
    output: str | _Parts
    id: _Id | None = None
    status: _Status | None = None


class ReasoningItem(Edge):
    type: Literal["reasoning"]
    id: _Id | None = None
    summary: _Parts | None = None
    content: _Parts | None = None
    encrypted_content: str | None = None
    status: _Status | None = None

    @property
    def text(self) -> str:
        """What was thought: all of it where a gateway packed it, else what can be read."""
        if self.encrypted_content:
            found = unseal(self.encrypted_content, most_bytes=MAX_REASONING_BYTES)
            if found is not None:
                return found
        return joined(self.content or self.summary or "")


class ReferenceItem(Edge):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"]
    id: _Id


class OtherItem(Edge):
    """What tools of OpenAI's own service said and did."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[
        str, Field(min_length=1, max_length=256, json_schema_extra={"not": {"enum": [*_KINDS]}})
    ]


def _kind(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "")
    return _KINDS.get(kind, "other") if isinstance(kind, str) else "other"


_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "cto",
    "reasoning": "rs",
}

Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CallOutputItem, Tag("output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("reference")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_kind),
]
Items = Annotated[list[Item], Field(max_length=4 * MAX_CALLS, fail_fast=True)]


def joined(content: str | Sequence[Part]) -> str:
    if isinstance(content, str):
        return content
    return _BETWEEN_PARTS.join(part.text or part.refusal or "" for part in content if part.is_text)


def listed_item(item: Edge, own_id: str) -> dict[str, Any]:
    """An item as it is stored and listed.

    Args:
        own_id: where it has no id, what follows the prefix of its kind in the one it gets.
    """
    shown = item.model_dump(exclude_none=True)
    shown["id"] = getattr(item, "id", None) or f"{_PREFIXES.get(shown['type'], 'item')}_{own_id}"
    match item:
        case MessageItem():
            said = item.role == "assistant"
            kind = "output_text" if said else "input_text"
            more: dict[str, Any] = {"annotations": []} if said else {}
            shown["content"] = [{"type": kind, "text": joined(item.content)} | more]
            shown["status"] = "completed"
        case FunctionCallItem() | CustomCallItem() | CallOutputItem():
            shown["status"] = "completed"
        case ReasoningItem():
            shown.setdefault("summary", [])
    return shown


def unsupported(items: Sequence[Edge]) -> Iterator[str]:
    """The paths, from an item on, of parts that are not served."""
    for index, item in enumerate(items):
        name = "content" if isinstance(item, MessageItem) else "output"
        content = getattr(item, name, None)
        if isinstance(content, list):
            for place, part in enumerate(content):
                if isinstance(part, Part) and not part.is_text:
                    yield f"{index}.{name}.{place}.type"


def messages_of(items: Sequence[Edge]) -> list[dict[str, Any]]:
    """As the cluster's messages: reasoning, text and calls that follow one another are one answer
    of the assistant's."""
    found: list[dict[str, Any]] = []
    answer: dict[str, Any] | None = None
    for item in items:
        if (piece := _piece(item)) is None:
            answer = None
            found += _message(item)
            continue
        if answer is not None and _goes_on(answer, piece):
            _join(answer, piece)
        else:
            answer = {"role": "assistant", "content": "", **piece}
            found.append(answer)
    return [message for message in found if message != {"role": "assistant", "content": ""}]


def _message(item: Edge) -> list[dict[str, Any]]:
    match item:
        case MessageItem():
            return [{"role": item.role, "content": joined(item.content)}]
        case CallOutputItem():
            text = joined(item.output)
            return [{"role": "tool", "tool_call_id": item.call_id, "content": text}]
        case _:
            return []


def _piece(item: Edge) -> dict[str, Any] | None:
    """What an item adds to an answer of the assistant's; None where it is none of that."""
    match item:
        case ReasoningItem():
            return {"reasoning": item.text} if item.text else {}
        case MessageItem(role="assistant"):
            return {"content": joined(item.content)}
        case FunctionCallItem():
            return {"tool_calls": [_call(item.call_id, item.name, item.namespace, item.arguments)]}
        case CustomCallItem():
            arguments = wrapped_input(item.input)
            return {"tool_calls": [_call(item.call_id, item.name, item.namespace, arguments)]}
        case _:
            return None


def _call(call_id: str, name: str, namespace: str | None, arguments: str) -> dict[str, Any]:
    function = {"name": flat_name(name, namespace), "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _goes_on(answer: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Whether a model could have said the piece in the same answer: it thinks first, calls last."""
    if "reasoning" in piece:
        return not answer["content"] and "tool_calls" not in answer
    return "tool_calls" in piece or "tool_calls" not in answer


def _join(answer: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        answer[name] = answer[name] + value if answer.get(name) else value
