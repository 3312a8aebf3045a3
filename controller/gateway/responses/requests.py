"""Requests of OpenAI's Responses API, and their conversion to cluster requests."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from controller.gateway.affinity import derived_affinity
from controller.gateway.request_body import NoneAlias
from controller.gateway.responses.items import (
    Items,
    MessageItem,
    UninterpretedObject,
    joined,
    unsupported,
)
from controller.gateway.responses.messages import messages_of
from controller.gateway.responses.tool_names import ToolNameMap, flat_name
from controller.gateway.responses.tools import Tools, cluster_tools, ignored_tools
from shared.codec import StrictInput, TemplateValues
from shared.messages.base import PriorityName
from shared.messages.request import (
    REST_OF_CONTEXT,
    MaxTokens,
    ModelName,
    ReasoningEffort,
    RepetitionPenalty,
    Share,
    Temperature,
    ThinkingBudget,
    TimeoutMs,
    TopK,
    TopLogprobs,
)
from shared.messages.request_parsing import reject_unsupported
from shared.messages.schemas import check_schema
from shared.messages.tools import ToolName

_Short = Annotated[str, Field(max_length=1024)]
_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"


class ChosenTool(StrictInput):
    type: Literal["function", "custom"]
    name: ToolName


class Reasoning(StrictInput):
    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(StrictInput):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.type == "json_schema":
            check_schema(self.schema_)
        return self

    def response_format(self) -> dict[str, Any]:
        """Return the format in the form of Chat Completions."""
        if self.type != "json_schema":
            return {"type": self.type}
        schema = {"name": self.name, "schema": self.schema_}
        return {"type": "json_schema", "json_schema": schema}


class ResponseTextConfig(StrictInput):
    format: TextFormat | None = None
    verbosity: str | None = None


class StreamOptions(StrictInput):
    include_obfuscation: bool | None = None


class ResponsesRequest(StrictInput):
    """`POST /v1/responses`."""

    model: ModelName | None = Field(
        None, description="A model, a skill or an alias.", examples=["chat"]
    )
    input: str | Items = Field(examples=["Hello!"])
    instructions: str | None = None
    max_output_tokens: Annotated[MaxTokens | None, NoneAlias(-1)] = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | UninterpretedObject | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: ResponseTextConfig | None = None
    include: Annotated[list[_Short], Field(max_length=64, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    previous_response_id: _Short | None = None
    prompt_cache_key: _Short | None = None
    metadata: dict[str, str] | None = None

    # Not supported.
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None

    # For OpenAI's own service; ignored.
    client_metadata: dict[str, Any] | None = None
    context_management: list[Any] | None = None
    max_tool_calls: int | None = None
    moderation: dict[str, Any] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: _Short | None = None
    service_tier: str | None = None
    truncation: str | None = None
    user: _Short | None = None

    # Extensions of the cluster.
    top_k: Annotated[TopK | None, NoneAlias(-1)] = None
    min_p: Share | None = None
    repetition_penalty: RepetitionPenalty | None = None
    thinking_budget: ThinkingBudget | None = None
    chat_template_kwargs: TemplateValues | None = None
    priority: PriorityName | None = None
    session_id: _Short | None = None
    timeout_ms: TimeoutMs | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def ignored_tools(self) -> list[str]:
        """The paths of tools that only OpenAI's service runs. The model does not get them."""
        return sorted({f"tools.{kind}" for kind in ignored_tools(self.tools or [])})

    @property
    def tool_names(self) -> ToolNameMap:
        return ToolNameMap(tool for tool, _ in cluster_tools(self.tools or []))

    @property
    def packs_reasoning(self) -> bool:
        """Whether the answer's reasoning items have `encrypted_content`."""
        return _ENCRYPTED in (self.include or ())

    @property
    def summarises(self) -> bool:
        """Whether the reasoning is sent as a summary, which then has all of it."""
        reasoning = self.reasoning
        return reasoning is not None and bool(reasoning.summary or reasoning.generate_summary)

    @property
    def items(self) -> list[Any]:
        """The input as items."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return list(self.input)

    def with_input(self, items: Sequence[StrictInput]) -> "ResponsesRequest":
        """Return a copy of the request with other input items."""
        return self.model_copy(update={"input": list(items)})

    def refuse_unsupported(self) -> None:
        """Raise RequestError if the request uses an unsupported feature."""
        features = {
            "background": bool(self.background),
            "conversation": self.conversation is not None,
            "prompt": self.prompt is not None,
            "tool_choice": isinstance(self.tool_choice, UninterpretedObject),
        }
        if isinstance(self.input, list):
            features |= {f"input.{path}": True for path in unsupported(self.input)}
        reject_unsupported(features)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request."""
        shared_fields = {
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "thinking_budget",
            "chat_template_kwargs", "timeout_ms",
        }  # fmt: skip
        fields = self.model_dump(include=shared_fields, exclude_none=True)
        fields["messages"] = self._messages()
        fields["max_tokens"] = self.max_output_tokens or REST_OF_CONTEXT
        if _LOGPROBS in (self.include or ()) or self.top_logprobs:
            fields["logprobs"] = self.top_logprobs or 0
        if self.reasoning is not None and self.reasoning.effort is not None:
            fields["reasoning_effort"] = self.reasoning.effort
        if self.text is not None and self.text.format is not None:
            fields["response_format"] = self.text.format.response_format()
        return fields | self._tool_fields()

    @property
    def affinity(self) -> str:
        """The affinity: the caller's cache key, else a hash of how the conversation began."""
        if self.prompt_cache_key:
            return self.prompt_cache_key
        beginning = [("instructions", self.instructions or "")]
        for item in self.items:
            if isinstance(item, MessageItem):
                beginning.append((item.role, joined(item.content)))
                if item.role == "user":
                    break
        return derived_affinity(beginning)

    def _messages(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return [*system, *messages_of(self.items)]

    def _tool_fields(self) -> dict[str, Any]:
        tools = [tool for _, tool in cluster_tools(self.tools or [])]
        if not tools:
            forced = self.tool_choice not in (None, "none", "auto")
            return {"tool_choice": "required"} if forced else {}
        fields: dict[str, Any] = {"tools": tools}
        match self.tool_choice:
            case ChosenTool():
                name = flat_name(self.tool_choice.name, None)
                fields["tool_choice"] = {"type": "function", "function": {"name": name}}
            case str():
                fields["tool_choice"] = self.tool_choice
        if self.parallel_tool_calls is False:
            fields["parallel_tool_calls"] = False
        return fields
