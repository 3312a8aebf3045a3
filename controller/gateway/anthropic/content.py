"""Blocks of content as Anthropic's clients send them, and what they mean to the cluster."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from shared.external_model import ExternalModel
from shared.messages.conversation import MAX_CALLS

CacheControl = dict[str, Any]
_BETWEEN_BLOCKS = "\n\n"
_CallId = Annotated[str, Field(min_length=1, max_length=256)]
_OtherKind = Literal[
    "image", "document", "search_result", "server_tool_use", "web_search_tool_result",
    "web_fetch_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result", "mcp_tool_use", "mcp_tool_result",
    "container_upload", "tool_reference",
]  # fmt: skip


class TextBlock(ExternalModel):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Field(fail_fast=True)] | None = None


class OtherBlock(ExternalModel):
    """Kinds that are known and not served."""

    model_config = ConfigDict(extra="allow")

    type: _OtherKind


class ThinkingBlock(ExternalModel):
    """What a model thought, as it was answered; the signature is not looked at."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None
    cache_control: CacheControl | None = None


class RedactedThinkingBlock(ExternalModel):
    """What another service kept to itself: nothing can be made of it."""

    type: Literal["redacted_thinking"]
    data: str
    cache_control: CacheControl | None = None


class ToolUseBlock(ExternalModel):
    type: Literal["tool_use"]
    id: _CallId
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input: dict[str, Any]
    cache_control: CacheControl | None = None

    @property
    def call(self) -> dict[str, Any]:
        """As the cluster's message has it."""
        function = {"name": self.name, "arguments": orjson.dumps(self.input).decode()}
        return {"id": self.id, "type": "function", "function": function}


class ToolResultBlock(ExternalModel):
    type: Literal["tool_result"]
    tool_use_id: _CallId
    content: str | Annotated[list[TextBlock | OtherBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @property
    def message(self) -> dict[str, Any]:
        """As the cluster has it."""
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
        | OtherBlock
    ],
    Field(max_length=4 * MAX_CALLS, fail_fast=True),
]


class Turn(ExternalModel):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | _Blocks

    @property
    def text(self) -> str:
        return text_of(self.content)

    @property
    def has_calls(self) -> bool:
        return any(isinstance(block, ToolUseBlock) for block in self._blocks)

    def unsupported(self) -> Iterator[str]:
        """The paths of what is not served."""
        for position, block in enumerate(self._blocks):
            if isinstance(block, OtherBlock):
                yield f"content.{position}.type"
            elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                for place, inner in enumerate(block.content):
                    if isinstance(inner, OtherBlock):
                        yield f"content.{position}.content.{place}.type"

    def messages(self) -> list[dict[str, Any]]:
        """As the cluster's messages: each result of a call is one."""
        if self.role == "assistant":
            return [self._answer()]
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        found: list[dict[str, Any]] = []
        texts: list[str] = []
        for block in self.content:
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ToolResultBlock):
                found += self._said(texts)
                texts = []
                found.append(block.message)
        return found + self._said(texts, needed=not found)

    def _said(self, texts: list[str], *, needed: bool = False) -> list[dict[str, Any]]:
        if not texts and not needed:
            return []
        return [{"role": self.role, "content": _BETWEEN_BLOCKS.join(texts)}]

    def _answer(self) -> dict[str, Any]:
        texts = [block.text for block in self._blocks if isinstance(block, TextBlock)]
        said = self.content if isinstance(self.content, str) else "".join(texts)
        answer: dict[str, Any] = {"role": "assistant", "content": said}
        thought = [block.thinking for block in self._blocks if isinstance(block, ThinkingBlock)]
        if thought:
            answer["reasoning"] = "".join(thought)
        calls = [block.call for block in self._blocks if isinstance(block, ToolUseBlock)]
        if calls:
            answer["tool_calls"] = calls
        return answer

    @property
    def _blocks(self) -> Sequence[ExternalModel]:
        return self.content if isinstance(self.content, list) else ()


def text_of(content: str | Sequence[ExternalModel]) -> str:
    """The text of a turn, a system prompt, or a result."""
    if isinstance(content, str):
        return content
    return _BETWEEN_BLOCKS.join(block.text for block in content if isinstance(block, TextBlock))
