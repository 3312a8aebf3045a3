"""Requests of OpenAI's Chat Completions and Completions, and their conversion to cluster requests.

Fields that only control OpenAI's own service are accepted and ignored. Fields for unsupported
features are refused with their name.
"""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from controller.gateway.affinity import derived_affinity
from controller.gateway.openai.messages import ChatMessage, Objects, Short
from controller.gateway.request_body import NoneAlias
from shared.codec import StrictInput, TemplateValues
from shared.messages.base import PriorityName
from shared.messages.conversation import continuation_problem
from shared.messages.request import (
    MAX_SEED,
    REST_OF_CONTEXT,
    Choices,
    LogitBias,
    MaxTokens,
    ModelName,
    Penalty,
    Prompt,
    ReasoningEffort,
    RepetitionPenalty,
    Share,
    StopString,
    StopStrings,
    Temperature,
    ThinkingBudget,
    TimeoutMs,
    TokenId,
    TopK,
    TopLogprobs,
)
from shared.messages.request_parsing import reject_unsupported
from shared.messages.structured import ResponseFormat, StructuredOutputs
from shared.messages.tools import Tools

_SHARED_FIELDS = {
    "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias",
    "stop", "n", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos",
    "structured_outputs", "timeout_ms",
}  # fmt: skip
_SHARED_CHAT_FIELDS = {
    "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort",
    "thinking_budget", "chat_template_kwargs",
}  # fmt: skip
"""Fields that the cluster's request has under the same name."""


_Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class StreamOptions(StrictInput):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _CompletionFields(StrictInput):
    """Fields of both APIs."""

    model: ModelName | None = Field(
        None, description="A model, a skill or an alias.", examples=["chat"]
    )
    max_tokens: Annotated[MaxTokens | None, NoneAlias(-1)] = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    stop: Annotated[StopString | StopStrings | None, NoneAlias("")] = None
    seed: Annotated[_Seed | None, NoneAlias(-1)] = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Short | None = None

    # Extensions of the cluster.
    top_k: Annotated[TopK | None, NoneAlias(-1)] = None
    min_p: Share | None = None
    repetition_penalty: RepetitionPenalty | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: PriorityName | None = None
    session_id: Short | None = None
    timeout_ms: TimeoutMs | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def ignored_tools(self) -> list[str]:
        """Always empty: tools of unsupported types are refused, not ignored."""
        return []

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def _shared_fields(self, *more: str) -> dict[str, Any]:
        """Return the fields that the cluster's request has under the same name."""
        fields = self.model_dump(include={*_SHARED_FIELDS, *more}, exclude_none=True)
        if self.seed is not None:
            fields["seed"] = self.seed & MAX_SEED
        return fields


class ChatRequest(_CompletionFields, Tools):
    """`POST /v1/chat/completions`."""

    messages: Annotated[
        list[ChatMessage],
        Field(min_length=1, fail_fast=True, examples=[[{"role": "user", "content": "Hello!"}]]),
    ]
    max_completion_tokens: Annotated[MaxTokens | None, NoneAlias(-1)] = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    parallel_tool_calls: bool | None = None  # type: ignore[assignment]  # it may be null here
    response_format: ResponseFormat | None = None
    reasoning_effort: ReasoningEffort | None = None

    # Extensions of the cluster.
    thinking_budget: ThinkingBudget | None = None
    chat_template_kwargs: TemplateValues | None = None
    continue_final_message: bool | None = Field(
        None,
        description="Whether to continue the last message, one of the assistant, instead of "
        "answering it. Default: if the message has text and no calls, and the request asks for no "
        "reasoning, schema or call.",
    )

    # Not supported.
    functions: Objects | None = None
    function_call: str | dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    modalities: list[str] | None = None
    web_search_options: dict[str, Any] | None = None

    # For OpenAI's own service; ignored.
    metadata: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: Short | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: Short | None = None
    service_tier: str | None = None
    store: bool | None = None
    verbosity: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: requires logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_completion_tokens: cannot be combined with max_tokens")
        return self

    def refuse_unsupported(self) -> None:
        """Raise RequestError if the request uses an unsupported feature."""
        unsupported = {
            "functions": bool(self.functions),
            "function_call": self.function_call not in (None, "none", "auto"),
            "audio": self.audio is not None,
            "modalities": self.modalities not in (None, ["text"]),
            "web_search_options": self.web_search_options is not None,
        }
        for index, message in enumerate(self.messages):
            for name, is_unsupported in message.unsupported().items():
                unsupported[f"messages.{index}.{name}"] = is_unsupported
        reject_unsupported(unsupported)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request."""
        fields = self._shared_fields(*_SHARED_CHAT_FIELDS)
        fields["max_tokens"] = self.max_completion_tokens or self.max_tokens or REST_OF_CONTEXT
        if self.logprobs:
            fields["logprobs"] = self.top_logprobs or 0
        fields["messages"] = [message.fields() for message in self.messages]
        if self._continues:
            fields["continue_final_message"] = True
        return fields

    @property
    def _continues(self) -> bool:
        if self.continue_final_message is not None:
            return self.continue_final_message
        is_constrained = self.must_call or any(
            constraint is not None and constraint.structure is not None
            for constraint in (self.response_format, self.structured_outputs)
        )
        thinks = bool(self.thinking_budget) or self.reasoning_effort not in (None, "none")
        problem = continuation_problem(self.messages[-1], bound=is_constrained, thinks=thinks)
        return problem is None

    @property
    def affinity(self) -> str:
        """The affinity: the caller's cache key, else a hash of how the conversation began."""
        return self.prompt_cache_key or _beginning(self.messages)


class CompletionRequest(_CompletionFields):
    """`POST /v1/completions`."""

    prompt: Prompt = Field(examples=["The capital of France is"])
    logprobs: TopLogprobs | None = None

    # Not supported.
    best_of: Choices | None = None
    echo: bool | None = None
    suffix: str | None = None

    def refuse_unsupported(self) -> None:
        """Raise RequestError if the request uses an unsupported feature."""
        reject_unsupported(
            {
                "best_of": self.best_of not in (None, self.n or 1),
                "echo": bool(self.echo),
                "suffix": bool(self.suffix),
            }
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request."""
        fields = self._shared_fields() | {"prompt": self.prompt}
        if self.logprobs is not None:
            fields["logprobs"] = self.logprobs
        return fields

    @property
    def affinity(self) -> None:
        return None


def _beginning(messages: list[ChatMessage]) -> str:
    """Return an affinity from all messages up to the user's first, which later requests share."""
    beginning = []
    for message in messages:
        beginning.append((message.role, message.text))
        if message.role == "user":
            break
    return derived_affinity(beginning)
