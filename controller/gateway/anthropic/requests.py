"""Requests of Anthropic's Messages API, and their conversion to cluster requests."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from controller.gateway.affinity import derived_affinity
from controller.gateway.anthropic.content import TextBlock, Turn, text_of
from controller.gateway.anthropic.tools import ClientTool, ServerTool, ToolChoice, Tools
from shared.codec import StrictInput
from shared.messages.base import PriorityName
from shared.messages.request import (
    MaxTokens,
    ModelName,
    ReasoningEffort,
    Share,
    StopStrings,
    Temperature,
    ThinkingBudget,
    TimeoutMs,
    TopK,
)
from shared.messages.request_parsing import reject_unsupported
from shared.messages.schemas import check_schema

_BILLING = "x-anthropic-billing-header:"
"""The start of a line of Claude Code's system prompt that changes with every request: a prompt with
this line would never be found in the prefix cache."""


class Metadata(StrictInput):
    user_id: Annotated[str, Field(max_length=1024)] | None = None


class Thinking(StrictInput):
    model_config = ConfigDict(extra="allow")

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: ThinkingBudget | None = None


class OutputFormat(StrictInput):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        check_schema(self.schema_)
        return self


class OutputConfig(StrictInput):
    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


class _Conversation(StrictInput):
    """Fields of requests for an answer and for a token count."""

    model: ModelName = Field(description="A model, a skill or an alias.", examples=["chat"])
    messages: Annotated[
        list[Turn],
        Field(min_length=1, fail_fast=True, examples=[[{"role": "user", "content": "Hello!"}]]),
    ]
    system: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="As older clients send it.")

    # Not supported.
    mcp_servers: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    compaction: dict[str, Any] | None = None
    thread: dict[str, Any] | None = None

    # For Anthropic's own service; ignored.
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None

    # Extensions of the cluster.
    priority: PriorityName | None = None
    session_id: Annotated[str, Field(max_length=1024)] | None = None
    timeout_ms: TimeoutMs | None = None

    @model_validator(mode="after")
    def _last_calls_have_results(self) -> Self:
        if self.messages[-1].role == "assistant" and self.messages[-1].has_calls:
            raise ValueError("messages: the last message has calls, but the results are missing")
        return self

    @property
    def ignored_tools(self) -> list[str]:
        """The paths of tools that only Anthropic's service runs. The model does not get them."""
        return [
            f"tools.{tool.name or tool.type}"
            for tool in self.tools or ()
            if isinstance(tool, ServerTool)
        ]

    def refuse_unsupported(self) -> None:
        """Raise RequestError if the request uses an unsupported feature."""
        unsupported = {
            "mcp_servers": bool(self.mcp_servers),
            "compaction": self.compaction is not None,
            "thread": self.thread is not None,
        }
        for index, turn in enumerate(self.messages):
            unsupported |= {f"messages.{index}.{path}": True for path in turn.unsupported()}
        reject_unsupported(unsupported)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request."""
        fields: dict[str, Any] = {"messages": self._messages(), **self._thinking_fields()}
        tools = [tool.tool for tool in self.tools or () if isinstance(tool, ClientTool)]
        if tools:
            fields["tools"] = tools
        if self.tool_choice is not None and (tools or self.tool_choice.type in ("any", "tool")):
            fields |= self.tool_choice.fields()
        output = self.output_config.format if self.output_config is not None else None
        if (output := output or self.output_format) is not None:
            schema = {"name": "output", "schema": output.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.messages[-1].role == "assistant" and self.messages[-1].text:
            fields["continue_final_message"] = True
        if self.timeout_ms is not None:
            fields["timeout_ms"] = self.timeout_ms
        return fields

    @property
    def system_text(self) -> str:
        """The system prompt, without the line that only Anthropic's service reads."""
        if isinstance(self.system, list):
            blocks = [block for block in self.system if not block.text.startswith(_BILLING)]
            return text_of(blocks)
        lines = (self.system or "").split("\n")
        return "\n".join(line for line in lines if not line.startswith(_BILLING))

    def _messages(self) -> list[dict[str, Any]]:
        turns = [message for turn in self.messages for message in turn.messages()]
        system = self.system_text
        return [{"role": "system", "content": system}, *turns] if system else turns

    def _thinking_fields(self) -> dict[str, Any]:
        """Return the fields that control reasoning, which is off unless `thinking` turns it on."""
        if self.thinking is None or self.thinking.type == "disabled":
            return {"reasoning_effort": "none"}
        effort = self.output_config.effort if self.output_config is not None else None
        fields: dict[str, Any] = {"reasoning_effort": effort or "medium"}
        if self.thinking.budget_tokens is not None:
            fields["thinking_budget"] = self.thinking.budget_tokens
        return fields


class CountTokensRequest(_Conversation):
    """`POST /v1/messages/count_tokens`."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request."""
        return super().fields() | {"count_only": True}

    @property
    def affinity(self) -> None:
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

    # For Anthropic's own service; ignored.
    container: Any = None
    diagnostics: Any = None
    inference_geo: str | None = None
    service_tier: str | None = None
    speed: str | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request."""
        fields = super().fields() | {"max_tokens": self.max_tokens}
        for name in ("temperature", "top_p", "top_k"):
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        if self.stop_sequences:
            fields["stop"] = self.stop_sequences
        return fields

    @property
    def affinity(self) -> str:
        """The affinity: the caller's user id, else a hash of how the conversation began."""
        if self.metadata is not None and self.metadata.user_id:
            return self.metadata.user_id
        return derived_affinity([("system", self.system_text), ("user", self.messages[0].text)])
