"""Content blocks of Anthropic's messages, and their conversion to the cluster's messages."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from shared.codec import StrictInput
from shared.messages.conversation import MAX_CALLS

CacheControl = dict[str, Any]
_BETWEEN_BLOCKS = "\n\n"
_CallId = Annotated[str, Field(min_length=1, max_length=256)]
_OtherType = Literal[
    "image", "document", "search_result", "server_tool_use", "web_search_tool_result",
    "web_fetch_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result", "mcp_tool_use", "mcp_tool_result",
    "container_upload", "tool_reference",
]  # fmt: skip


class TextBlock(StrictInput):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Field(fail_fast=True)] | None = None


class UnsupportedBlock(StrictInput):
    """A block of a known type that is not supported."""

    model_config = ConfigDict(extra="allow")

    type: _OtherType


class ThinkingBlock(StrictInput):
    """Reasoning that clients send back; the signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None
    cache_control: CacheControl | None = None


class RedactedThinkingBlock(StrictInput):
    """Encrypted reasoning of Anthropic's service, which is dropped."""

    type: Literal["redacted_thinking"]
    data: str
    cache_control: CacheControl | None = None


class ToolUseBlock(StrictInput):
    type: Literal["tool_use"]
    id: _CallId
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input: dict[str, Any]
    cache_control: CacheControl | None = None

    @property
    def call(self) -> dict[str, Any]:
        """The call in the format of the cluster's messages."""
        function = {"name": self.name, "arguments": orjson.dumps(self.input).decode()}
        return {"id": self.id, "type": "function", "function": function}


class ToolResultBlock(StrictInput):
    type: Literal["tool_result"]
    tool_use_id: _CallId
    content: str | Annotated[list[TextBlock | UnsupportedBlock], Field(fail_fast=True)] | None = (
        None
    )
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The result as a message of the cluster."""
        text = text_of(self.content or "")
        if self.is_error and not text.lower().startswith("error"):
            text = f"Error: {text}"
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": text}


_Blocks = Annotated[
    list[
        TextBlock
        | ThinkingBlock
        | RedactedThinkingBlock
        | ToolUseBlock
        | ToolResultBlock
        | UnsupportedBlock
    ],
    Field(max_length=4 * MAX_CALLS, fail_fast=True),
]


class Turn(StrictInput):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | _Blocks

    @property
    def text(self) -> str:
        return text_of(self.content)

    @property
    def has_calls(self) -> bool:
        return any(isinstance(block, ToolUseBlock) for block in self._blocks)

    def unsupported(self) -> Iterator[str]:
        """Yield the paths of unsupported blocks."""
        for index, block in enumerate(self._blocks):
            if isinstance(block, UnsupportedBlock):
                yield f"content.{index}.type"
            elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                for inner_index, inner in enumerate(block.content):
                    if isinstance(inner, UnsupportedBlock):
                        yield f"content.{index}.content.{inner_index}.type"

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the cluster; each result of a call is a message of its own."""
        if self.role == "assistant":
            return [self._assistant_message()]
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        messages: list[dict[str, Any]] = []
        pending: list[str] = []
        for block in self.content:
            if isinstance(block, TextBlock):
                pending.append(block.text)
            elif isinstance(block, ToolResultBlock):
                messages += self._text_message(pending)
                pending = []
                messages.append(block.message)
        return messages + self._text_message(pending, allow_empty=not messages)

    def _text_message(self, parts: list[str], *, allow_empty: bool = False) -> list[dict[str, Any]]:
        """Return one message, or none without parts unless `allow_empty`."""
        if not parts and not allow_empty:
            return []
        return [{"role": self.role, "content": _BETWEEN_BLOCKS.join(parts)}]

    def _assistant_message(self) -> dict[str, Any]:
        parts = [block.text for block in self._blocks if isinstance(block, TextBlock)]
        content = self.content if isinstance(self.content, str) else "".join(parts)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        reasoning = [block.thinking for block in self._blocks if isinstance(block, ThinkingBlock)]
        if reasoning:
            message["reasoning"] = "".join(reasoning)
        calls = [block.call for block in self._blocks if isinstance(block, ToolUseBlock)]
        if calls:
            message["tool_calls"] = calls
        return message

    @property
    def _blocks(self) -> Sequence[StrictInput]:
        return self.content if isinstance(self.content, list) else ()


def text_of(content: str | Sequence[StrictInput]) -> str:
    """Return the text of a message, a system prompt, or a tool result."""
    if isinstance(content, str):
        return content
    return _BETWEEN_BLOCKS.join(block.text for block in content if isinstance(block, TextBlock))
