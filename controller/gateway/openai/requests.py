"""What OpenAI's clients send, and what it means to the cluster.

Fields that only steer OpenAI's own service are taken and do nothing; fields for what is not served
are refused by name.
"""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from controller.gateway.affinity import derived_affinity
from controller.gateway.none_values import NoneSentinel
from controller.gateway.openai.messages import ChatMessage, Objects, Short
from shared.external_model import ExternalModel, TemplateValues
from shared.messages.conversation import continuation_problem
from shared.messages.priorities import PriorityName
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
from shared.messages.request_parsing import refuse_asked
from shared.messages.structured import ResponseFormat, StructuredOutputs
from shared.messages.tools import Tools

_SAME = {
    "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias",
    "stop", "n", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos",
    "structured_outputs", "timeout_ms",
}  # fmt: skip
_SAME_OF_CHATS = {
    "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort",
    "thinking_budget", "chat_template_kwargs",
}  # fmt: skip
"""What the cluster's request calls the same."""


_Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class StreamOptions(ExternalModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Common(ExternalModel):
    """What both kinds of completions take."""

    model: ModelName | None = Field(
        None, description="A model, a skill or an alias.", examples=["chat"]
    )
    max_tokens: Annotated[MaxTokens | None, NoneSentinel(-1)] = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    stop: Annotated[StopString | StopStrings | None, NoneSentinel("")] = None
    seed: Annotated[_Seed | None, NoneSentinel(-1)] = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Short | None = None

    # The cluster's own.
    top_k: Annotated[TopK | None, NoneSentinel(-1)] = None
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
    def left_out(self) -> list[str]:
        """What was known and not heeded, besides unknown fields."""
        return []

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def _same_fields(self, *more: str) -> dict[str, Any]:
        """Those that the cluster calls the same."""
        fields = self.model_dump(include={*_SAME, *more}, exclude_none=True)
        if self.seed is not None:
            fields["seed"] = self.seed & MAX_SEED
        return fields


class ChatRequest(_Common, Tools):
    """`POST /v1/chat/completions`."""

    messages: Annotated[
        list[ChatMessage],
        Field(min_length=1, fail_fast=True, examples=[[{"role": "user", "content": "Hello!"}]]),
    ]
    max_completion_tokens: Annotated[MaxTokens | None, NoneSentinel(-1)] = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    parallel_tool_calls: bool | None = None  # type: ignore[assignment]  # it may be null here
    response_format: ResponseFormat | None = None
    reasoning_effort: ReasoningEffort | None = None

    # The cluster's own.
    thinking_budget: ThinkingBudget | None = None
    chat_template_kwargs: TemplateValues | None = None
    continue_final_message: bool | None = Field(
        None,
        description="Go on with a last message of the assistant's instead of answering it. By "
        "default where it has text and no calls, and nothing else is asked of the answer.",
    )

    # Not served.
    functions: Objects | None = None
    function_call: str | dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    modalities: list[str] | None = None
    web_search_options: dict[str, Any] | None = None

    # Of OpenAI's own service.
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
            raise ValueError("top_logprobs: it needs logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_completion_tokens: give it or max_tokens, not both")
        return self

    def refuse_unsupported(self) -> None:
        """Raises RequestError for what is not served."""
        asked = {
            "functions": bool(self.functions),
            "function_call": self.function_call not in (None, "none", "auto"),
            "audio": self.audio is not None,
            "modalities": self.modalities not in (None, ["text"]),
            "web_search_options": self.web_search_options is not None,
        }
        for index, message in enumerate(self.messages):
            for name, is_asked in message.unsupported().items():
                asked[f"messages.{index}.{name}"] = is_asked
        refuse_asked(asked)

    def fields(self) -> dict[str, Any]:
        """As the cluster's request says it."""
        fields = self._same_fields(*_SAME_OF_CHATS)
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
        is_bound = self.must_call or any(
            each is not None and each.structure is not None
            for each in (self.response_format, self.structured_outputs)
        )
        thinks = bool(self.thinking_budget) or self.reasoning_effort not in (None, "none")
        problem = continuation_problem(self.messages[-1], bound=is_bound, thinks=thinks)
        return problem is None

    @property
    def affinity(self) -> str:
        """What names the conversation: the caller's word, or how it began."""
        return self.prompt_cache_key or _beginning(self.messages)


class CompletionRequest(_Common):
    """`POST /v1/completions`."""

    prompt: Prompt = Field(examples=["The capital of France is"])
    logprobs: TopLogprobs | None = None

    # Not served.
    best_of: Choices | None = None
    echo: bool | None = None
    suffix: str | None = None

    def refuse_unsupported(self) -> None:
        """Raises RequestError for what is not served."""
        refuse_asked(
            {
                "best_of": self.best_of not in (None, self.n or 1),
                "echo": bool(self.echo),
                "suffix": bool(self.suffix),
            }
        )

    def fields(self) -> dict[str, Any]:
        """As the cluster's request says it."""
        fields = self._same_fields() | {"prompt": self.prompt}
        if self.logprobs is not None:
            fields["logprobs"] = self.logprobs
        return fields

    @property
    def affinity(self) -> None:
        return None


def _beginning(messages: list[ChatMessage]) -> str:
    """All up to the first turn of the user: later turns have the same."""
    beginning = []
    for message in messages:
        beginning.append((message.role, message.text))
        if message.role == "user":
            break
    return derived_affinity(beginning)
