"""Messages of OpenAI's Chat Completions, and their conversion to the cluster's messages."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from shared.codec import StrictInput
from shared.messages.conversation import MAX_CALLS
from shared.messages.tools import CalledFunction, ToolCall

Short = Annotated[str, Field(max_length=1024)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]

_SHARED_FIELDS = {"role", "name", "tool_calls", "tool_call_id"}
"""Fields that the cluster's messages have under the same name."""


_REASONING_TYPES = ("thinking", "redacted_thinking", "reasoning")


class Part(StrictInput):
    """One part of a message: text, or reasoning as some clients send it back. Other types are not
    supported yet."""

    type: Literal["text", "refusal", "thinking", "redacted_thinking", "reasoning", "image_url",
                  "input_audio", "file"]  # fmt: skip
    text: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    image_url: dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    file: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if self.type == "text" and self.text is None:
            raise ValueError("text: required in a part of type text")
        return self

    @property
    def content_text(self) -> str:
        """The text, or "" for reasoning."""
        return "" if self.type in _REASONING_TYPES else self.text or ""

    @property
    def reasoning_text(self) -> str:
        return self.thinking or self.text or "" if self.type in _REASONING_TYPES else ""


class ReasoningDetail(StrictInput):
    """A part of the reasoning, in the format of routers such as OpenRouter."""

    model_config = ConfigDict(extra="allow")

    text: str | None = None
    summary: str | None = None


class ResentFunction(CalledFunction):
    """A called function, with the arguments that OpenAI's client parsed."""

    parsed_arguments: Any = Field(None, exclude=True)


class ResentToolCall(ToolCall):
    """A call that clients send back; `index` is the index in a stream's deltas."""

    function: ResentFunction
    index: int | None = Field(None, exclude=True)


_Calls = Annotated[list[ResentToolCall], Field(max_length=MAX_CALLS, fail_fast=True)]


class ChatMessage(StrictInput):
    """A message, also one of the assistant that clients send back: with reasoning as
    `reasoning_content`, `reasoning`, `reasoning_details` or parts of the content, and with the
    content that OpenAI's client parsed as `parsed`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    name: Short | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: Annotated[list[ReasoningDetail], Field(fail_fast=True)] | None = None
    tool_calls: _Calls | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    annotations: Objects | None = None
    parsed: Any = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.content_text for part in self.content)
        return self.content or ""

    @property
    def reasoning_text(self) -> str | None:
        """The reasoning, from the first field that has it."""
        for field in (self.reasoning, self.reasoning_content):
            if field is not None:
                return field
        details = "".join(each.text or each.summary or "" for each in self.reasoning_details or ())
        parts = self.content if isinstance(self.content, list) else []
        return details or "".join(part.reasoning_text for part in parts) or None

    def unsupported(self) -> dict[str, bool]:
        """Return, by field, whether the message uses an unsupported feature."""
        unsupported = {
            "role": self.role == "function",
            "function_call": bool(self.function_call),
            "audio": bool(self.audio),
        }
        if isinstance(self.content, list):
            for index, part in enumerate(self.content):
                is_supported = part.type in ("text", "refusal", *_REASONING_TYPES)
                unsupported[f"content.{index}.type"] = not is_supported
        return unsupported

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's message."""
        fields = self.model_dump(include=_SHARED_FIELDS, exclude_none=True) | {"content": self.text}
        reasoning = self.reasoning_text
        return fields if reasoning is None else fields | {"reasoning": reasoning}
