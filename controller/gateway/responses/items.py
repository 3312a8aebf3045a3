"""Input items of OpenAI's Responses API."""

import base64
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from shared.codec import StrictInput
from shared.errors import RequestError
from shared.messages.conversation import MAX_CALLS


def pack(reasoning: str) -> str:
    return base64.b64encode(zlib.compress(reasoning.encode(errors="surrogatepass"))).decode()


def unpack(packed: str, *, max_bytes: int) -> str | None:
    """Return the reasoning; None if `pack` did not make `packed`.

    Raises:
        RequestError: `payload_too_large`: the reasoning has more than `max_bytes`.
    """
    decoder = zlib.decompressobj()
    try:
        reasoning = decoder.decompress(base64.b64decode(packed, validate=True), max_bytes + 1)
        if len(reasoning) <= max_bytes:
            return reasoning.decode(errors="surrogatepass") if decoder.eof else None
    except (ValueError, zlib.error):
        return None
    raise RequestError(
        "input: reasoning.encrypted_content is too large in total", code="payload_too_large"
    )


def _serialisable(value: Any) -> Any:
    """Return the value. Raise ValueError if it is not portable JSON."""
    try:
        orjson.dumps(value)
    except TypeError:
        raise ValueError("it has a number beyond 64 bits") from None
    return value


PlainObject = Annotated[dict[str, Any], AfterValidator(_serialisable)]
PlainList = Annotated[list[Any], Field(fail_fast=True), AfterValidator(_serialisable)]


class UninterpretedObject(StrictInput, extra="allow"):
    """An object of a type that is not supported, with all its fields."""

    type: Annotated[str, Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        _serialisable(self.__pydantic_extra__)
        return self


_PART_SEPARATOR = "\n\n"
_Id = Annotated[str, Field(max_length=512)]
_CallId = Annotated[str, Field(min_length=1, max_length=256)]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Status = Literal["in_progress", "completed", "incomplete"]


_TAGS: dict[str, str] = {
    "message": "message",
    "function_call": "function_call",
    "custom_tool_call": "custom_tool_call",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "reasoning": "reasoning",
    "item_reference": "reference",
}


class Part(StrictInput):
    """One part of a message or a tool result; only text is supported."""

    type: Literal["input_text", "output_text", "text", "refusal", "input_image", "input_file",
                  "input_audio", "summary_text", "reasoning_text"]  # fmt: skip
    text: str | None = None
    refusal: str | None = None
    annotations: PlainList | None = None
    logprobs: PlainList | None = None

    @property
    def is_text(self) -> bool:
        return self.type not in ("input_image", "input_file", "input_audio")


_Parts = Annotated[list[Part], Field(fail_fast=True)]


class MessageItem(StrictInput):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | _Parts
    type: Literal["message"] = "message"
    id: _Id | None = None
    status: _Status | None = None
    phase: str | None = None


class FunctionCallItem(StrictInput):
    type: Literal["function_call"]
    call_id: _CallId
    name: _Name
    arguments: str
    namespace: _Name | None = None
    id: _Id | None = None
    status: _Status | None = None


class CustomCallItem(StrictInput):
    type: Literal["custom_tool_call"]
    call_id: _CallId
    name: _Name
    input: str
    namespace: _Name | None = None
    id: _Id | None = None
    status: _Status | None = None


class CallOutputItem(StrictInput):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: _CallId
    output: str | _Parts
    id: _Id | None = None
    status: _Status | None = None


class ReasoningItem(StrictInput):
    type: Literal["reasoning"]
    id: _Id | None = None
    summary: _Parts | None = None
    content: _Parts | None = None
    encrypted_content: str | None = None
    status: _Status | None = None


class ReferenceItem(StrictInput):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"]
    id: _Id


class OtherItem(UninterpretedObject):
    """An item of a tool that OpenAI's service runs."""

    type: Annotated[
        str, Field(min_length=1, max_length=256, json_schema_extra={"not": {"enum": [*_TAGS]}})
    ]
    id: _Id | None = None


def _tag(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "")
    return _TAGS.get(kind, "other") if isinstance(kind, str) else "other"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CallOutputItem, Tag("output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("reference")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_tag),
]
Items = Annotated[list[Item], Field(max_length=4 * MAX_CALLS, fail_fast=True)]


def joined(content: str | Sequence[Part]) -> str:
    if isinstance(content, str):
        return content
    return _PART_SEPARATOR.join(part.text or part.refusal or "" for part in content if part.is_text)


def unsupported(items: Sequence[StrictInput]) -> Iterator[str]:
    """Yield the paths of unsupported parts, relative to the list of items."""
    for index, item in enumerate(items):
        name = "content" if isinstance(item, MessageItem) else "output"
        content = getattr(item, name, None)
        if isinstance(content, list):
            for part_index, part in enumerate(content):
                if isinstance(part, Part) and not part.is_text:
                    yield f"{index}.{name}.{part_index}.type"
