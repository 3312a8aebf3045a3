"""What Anthropic's clients send, and what it means to the cluster."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from controller.gateway.affinity import derived_affinity
from controller.gateway.anthropic.content import TextBlock, Turn, text_of
from controller.gateway.anthropic.tools import ClientTool, ServerTool, ToolChoice, Tools
from shared.external_model import ExternalModel
from shared.messages.priorities import PriorityName
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
from shared.messages.request_parsing import refuse_asked
from shared.messages.schemas import check_schema

_BILLING = "x-anthropic-billing-header:"
"""A line of Claude Code's system prompt that changes with every request: what is behind it would
never be found in the cache."""


class Metadata(ExternalModel):
    user_id: Annotated[str, Field(max_length=1024)] | None = None


class Thinking(ExternalModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: ThinkingBudget | None = None


class OutputFormat(ExternalModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        check_schema(self.schema_)
        return self


class OutputConfig(ExternalModel):
    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


class _Conversation(ExternalModel):
    """What is read, whether it is answered or only counted."""

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
    output_format: OutputFormat | None = Field(None, description="As older clients have it.")

    # Not served.
    mcp_servers: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    compaction: dict[str, Any] | None = None
    thread: dict[str, Any] | None = None

    # Of Anthropic's own service.
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None

    # The cluster's own.
    priority: PriorityName | None = None
    session_id: Annotated[str, Field(max_length=1024)] | None = None
    timeout_ms: TimeoutMs | None = None

    @model_validator(mode="after")
    def _can_go_on(self) -> Self:
        if self.messages[-1].role == "assistant" and self.messages[-1].has_calls:
            raise ValueError("messages: the last one has calls, of which the results are missing")
        return self

    @property
    def left_out(self) -> list[str]:
        """The paths of tools that nobody here can run, which the model is not told of."""
        return [
            f"tools.{tool.name or tool.type}"
            for tool in self.tools or ()
            if isinstance(tool, ServerTool)
        ]

    def refuse_unsupported(self) -> None:
        """Raises RequestError for what is not served."""
        asked = {
            "mcp_servers": bool(self.mcp_servers),
            "compaction": self.compaction is not None,
            "thread": self.thread is not None,
        }
        for index, turn in enumerate(self.messages):
            asked |= {f"messages.{index}.{path}": True for path in turn.unsupported()}
        refuse_asked(asked)

    def fields(self) -> dict[str, Any]:
        """As the cluster's request says it."""
        fields: dict[str, Any] = {"messages": self._messages(), **self._thinking_fields()}
        tools = [each.tool for each in self.tools or () if isinstance(each, ClientTool)]
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
        """Without what only Anthropic's service reads."""
        if isinstance(self.system, list):
            kept = [block for block in self.system if not block.text.startswith(_BILLING)]
            return text_of(kept)
        lines = (self.system or "").split("\n")
        return "\n".join(line for line in lines if not line.startswith(_BILLING))

    def _messages(self) -> list[dict[str, Any]]:
        turns = [message for turn in self.messages for message in turn.messages()]
        system = self.system_text
        return [{"role": "system", "content": system}, *turns] if system else turns

    def _thinking_fields(self) -> dict[str, Any]:
        """A model thinks only where that is asked for."""
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
        """As the cluster's request says it."""
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

    # Of Anthropic's own service.
    container: Any = None
    diagnostics: Any = None
    inference_geo: str | None = None
    service_tier: str | None = None
    speed: str | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def fields(self) -> dict[str, Any]:
        """As the cluster's request says it."""
        fields = super().fields() | {"max_tokens": self.max_tokens}
        for name in ("temperature", "top_p", "top_k"):
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        if self.stop_sequences:
            fields["stop"] = self.stop_sequences
        return fields

    @property
    def affinity(self) -> str:
        """What names the conversation: the caller's word, or how it began."""
        if self.metadata is not None and self.metadata.user_id:
            return self.metadata.user_id
        return derived_affinity([("system", self.system_text), ("user", self.messages[0].text)])
