"""What Anthropic's clients send, and what it means to the cluster."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from controller.gateway.sessions import derived_name
from shared.messages.edge import Edge
from shared.messages.request import (
    MaxTokens,
    ModelName,
    PriorityName,
    Share,
    StopStrings,
    Temperature,
    TimeoutMs,
    TopK,
    refuse_asked,
)

_Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
_OtherKind = Literal[
    "image",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "server_tool_use",
    "web_search_tool_result",
    "container_upload",
]


class Block(Edge):
    """One block of content; text is the only kind that is served yet."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None
    citations: Annotated[list[Any], Field(fail_fast=True)] | None = None


class OtherBlock(Edge):
    """Kinds that are known and not served yet."""

    model_config = ConfigDict(extra="allow")

    type: _OtherKind


class Turn(Edge):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block | OtherBlock], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        return _text(self.content)


class Metadata(Edge):
    user_id: Annotated[str, Field(max_length=1024)] | None = None


class Thinking(Edge):
    model_config = ConfigDict(extra="allow")

    type: Literal["enabled", "disabled", "adaptive"]


class _Conversation(Edge):
    """What is read, whether it is answered or only counted."""

    model: ModelName = Field(description="A model, a skill or an alias.", examples=["chat"])
    messages: Annotated[
        list[Turn],
        Field(min_length=1, fail_fast=True, examples=[[{"role": "user", "content": "Hello!"}]]),
    ]
    system: str | Annotated[list[Block], Field(fail_fast=True)] | None = None

    # Not served yet.
    tools: _Objects | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: dict[str, Any] | None = None
    mcp_servers: _Objects | None = None

    # Of Anthropic's own service.
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None

    # The cluster's own.
    priority: PriorityName | None = None
    timeout_ms: TimeoutMs | None = None

    def refuse_unsupported(self) -> None:
        """Raises RequestError for what is not served yet."""
        asked = {
            "tools": bool(self.tools),
            "tool_choice": self.tool_choice is not None
            and self.tool_choice.get("type") not in ("auto", "none"),
            "thinking": self.thinking is not None and self.thinking.type == "enabled",
            "output_config": bool(self.output_config and self.output_config.get("format")),
            "mcp_servers": bool(self.mcp_servers),
        }
        for index, turn in enumerate(self.messages):
            if isinstance(turn.content, list):
                for position, block in enumerate(turn.content):
                    asked[f"messages.{index}.content.{position}.type"] = block.type != "text"
        refuse_asked(asked)

    def messages_fields(self) -> list[dict[str, str]]:
        """System and turns as the cluster's messages."""
        turns = [{"role": turn.role, "content": turn.text} for turn in self.messages]
        system = _text(self.system) if self.system is not None else ""
        return [{"role": "system", "content": system}, *turns] if system else turns


class CountTokensRequest(_Conversation):
    """`POST /v1/messages/count_tokens`."""

    def fields(self) -> dict[str, Any]:
        """As the cluster's request says it."""
        timeout = {} if self.timeout_ms is None else {"timeout_ms": self.timeout_ms}
        return {"messages": self.messages_fields(), "count_only": True, **timeout}

    @property
    def session(self) -> None:
        return None


class MessagesRequest(_Conversation):
    """`POST /v1/messages`."""

    max_tokens: MaxTokens
    stop_sequences: StopStrings | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    stream: bool | None = None
    metadata: Metadata | None = None

    # Of Anthropic's own service.
    container: Any = None
    diagnostics: Any = None
    inference_geo: str | None = None
    service_tier: str | None = None
    speed: str | None = None

    @model_validator(mode="after")
    def _ends_with_a_question(self) -> Self:
        if self.messages[-1].role == "assistant":
            raise ValueError("messages: the last one must be the user's; prefill is not supported")
        return self

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def fields(self) -> dict[str, Any]:
        """As the cluster's request says it."""
        fields: dict[str, Any] = {
            "messages": self.messages_fields(),
            "max_tokens": self.max_tokens,
        }
        for name in ("temperature", "top_p", "top_k", "timeout_ms"):
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        if self.stop_sequences:
            fields["stop"] = self.stop_sequences
        return fields

    @property
    def session(self) -> str:
        """What names the conversation: the caller's word, or how it began."""
        if self.metadata is not None and self.metadata.user_id:
            return self.metadata.user_id
        system = _text(self.system) if self.system is not None else ""
        return derived_name([("system", system), ("user", self.messages[0].text)])


def _text(content: str | Sequence[Block | OtherBlock]) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.text for block in content if isinstance(block, Block))
