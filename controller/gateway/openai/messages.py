"""Messages as OpenAI's clients send them, and what they mean to the cluster."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from shared.external_model import ExternalModel
from shared.messages.conversation import MAX_CALLS
from shared.messages.tools import CalledFunction, ToolCall

Short = Annotated[str, Field(max_length=1024)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]

_SAME = {"role", "name", "tool_calls", "tool_call_id"}
"""What the cluster's messages call the same."""


_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")


class Part(ExternalModel):
    """One part of a message: text, or what was thought, as some clients keep it; other kinds are
    not served yet."""

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
            raise ValueError("text: a part of type text needs it")
        return self

    @property
    def said(self) -> str:
        """Without what was thought."""
        return "" if self.type in _THOUGHTS else self.text or ""

    @property
    def thought(self) -> str:
        return self.thinking or self.text or "" if self.type in _THOUGHTS else ""


class ReasoningDetail(ExternalModel):
    """A part of what was thought, as routers before several services have it."""

    model_config = ConfigDict(extra="allow")

    text: str | None = None
    summary: str | None = None


class ReturnedFunction(CalledFunction):
    """With what OpenAI's client made of the arguments."""

    parsed_arguments: Any = Field(None, exclude=True)


class ReturnedCall(ToolCall):
    """A call as clients send it back; `index` is that of a stream's deltas."""

    function: ReturnedFunction
    index: int | None = Field(None, exclude=True)


_Calls = Annotated[list[ReturnedCall], Field(max_length=MAX_CALLS, fail_fast=True)]


class ChatMessage(ExternalModel):
    """One turn, as clients send it, and as they send back what they were given: what the model
    thought as `reasoning_content`, `reasoning`, `reasoning_details` or parts of the content, what
    OpenAI's client made of the content as `parsed`."""

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
            return "".join(part.said for part in self.content)
        return self.content or ""

    @property
    def thought(self) -> str | None:
        """From the first place that has it."""
        for named in (self.reasoning, self.reasoning_content):
            if named is not None:
                return named
        details = "".join(each.text or each.summary or "" for each in self.reasoning_details or ())
        parts = self.content if isinstance(self.content, list) else []
        return details or "".join(part.thought for part in parts) or None

    def unsupported(self) -> dict[str, bool]:
        """By field, whether it asks for what is not served."""
        asked = {
            "role": self.role == "function",
            "function_call": bool(self.function_call),
            "audio": bool(self.audio),
        }
        if isinstance(self.content, list):
            for index, part in enumerate(self.content):
                asked[f"content.{index}.type"] = part.type not in ("text", "refusal", *_THOUGHTS)
        return asked

    def fields(self) -> dict[str, Any]:
        """As the cluster's message says it."""
        fields = self.model_dump(include=_SAME, exclude_none=True) | {"content": self.text}
        return fields if self.thought is None else fields | {"reasoning": self.thought}
