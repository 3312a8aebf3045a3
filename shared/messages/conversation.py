"""The messages of a conversation, with OpenAI's names."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from shared.codec import StrictInput
from shared.messages.base import ShortName
from shared.messages.json_bounds import MAX_LISTED_OBJECTS
from shared.messages.tools import ToolCall

MAX_CALLS = 4096
"""In one message."""


class TextPart(StrictInput):
    type: Literal["text"]
    text: str


TextParts = Annotated[list[TextPart], Field(max_length=MAX_LISTED_OBJECTS, fail_fast=True)]


class Message(StrictInput):
    """One turn of a conversation. An assistant's message has `reasoning` and `tool_calls` as they
    were received; `tool_call_id` is the call whose result a tool's message has."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | TextParts | None = None
    name: Annotated[str, Field(max_length=1024)] | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: ShortName | None = None

    @property
    def text(self) -> str:
        """The content as one string, its parts joined."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def turn(self) -> "Turn":
        """The message in the form that a chat template reads."""
        turn: Turn = {"role": self.role, "content": self.text}
        for name in ("name", "reasoning", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                turn[name] = value
        if self.tool_calls:
            turn["tool_calls"] = [each.call for each in self.tool_calls]
        return turn


Messages = Annotated[
    list[Message], Field(min_length=1, max_length=MAX_LISTED_OBJECTS, fail_fast=True)
]

Turn = dict[str, Any]
"""A message: `role`, `content`, and optionally `name`, `reasoning`, `tool_calls`,
`tool_call_id`."""


def turn_bytes(turn: Turn) -> int:
    """Return the bytes of content, reasoning and calls in UTF-8."""
    functions = (call["function"] for call in turn.get("tool_calls", ()))
    return (
        utf8_bytes(turn["content"])
        + utf8_bytes(turn.get("reasoning", ""))
        + sum(utf8_bytes(each["name"]) + utf8_bytes(each["arguments"]) for each in functions)
    )


class MessageLike(Protocol):
    """A message of any of the APIs."""

    @property
    def role(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def tool_calls(self) -> Sequence[ToolCall] | None: ...


def continuation_problem(last: MessageLike | None, *, bound: bool, thinks: bool) -> str | None:
    """Return why an answer cannot continue the last message, or None.

    Args:
        bound: the answer is constrained to a schema or a call.
        thinks: the request asks for reasoning.
    """
    if last is None or last.role != "assistant" or not last.text or last.tool_calls:
        return "the last message must be the assistant's, with text and without calls"
    if bound:
        return "a continued answer cannot be constrained to a schema or a call"
    if thinks:
        return "a continued answer cannot have reasoning"
    return None


def utf8_bytes(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
