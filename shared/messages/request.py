"""A client's request, with OpenAI's names, defaults and ranges.

Every field is validated strictly here, and unknown fields are rejected.
"""

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Literal, Self

import orjson
from pydantic import Field, model_validator

from shared.codec import StrictInput, TemplateValues
from shared.ids import DERIVED_SESSION, ID_PATTERN, RequestId
from shared.messages.base import (
    PRIORITIES,
    Priority,
    PriorityName,
    ShortName,
    canonical_priority,
)
from shared.messages.conversation import (
    MAX_CALLS,
    Messages,
    Turn,
    continuation_problem,
    turn_bytes,
    utf8_bytes,
)
from shared.messages.json_bounds import MAX_KEYS, MAX_VALUES
from shared.messages.structured import ResponseFormat, Structure, StructuredOutputs
from shared.messages.tools import Tools

MAX_SEED = 2**53 - 1
MAX_CHOICES = 128
MAX_INPUTS = 2048
"""Texts of one embedding request, as in OpenAI's API."""
_OF_INPUT = ("dimensions", "prompt_name", "query", "truncate")
DEFAULT_MAX_TOKENS = 512
MAX_STOP_STRINGS = 16
# Validation of lists stops at the first error: collecting a million would block the controller.
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_SEVERAL = Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
_INPUTS = Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)
_FIRST_FIT = Field(union_mode="left_to_right")  # a long list is validated once
Text = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)]
_TextList = Annotated[list[Text], _SEVERAL]
_Inputs = Annotated[list[Text], _INPUTS]
Prompt = Annotated[Text | TokenIds | _TextList | Annotated[list[TokenIds], _SEVERAL], _FIRST_FIT]
Input = Annotated[Text | TokenIds | _Inputs | Annotated[list[TokenIds], _INPUTS], _FIRST_FIT]
Query = Annotated[Text | _Inputs, _FIRST_FIT]
Dimensions = Annotated[int, Field(ge=1, le=65_536)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
REST_OF_CONTEXT = 2**31
"""A `max_tokens` that means the whole context after the prompt."""
MaxTokens = Annotated[int, Field(ge=1, le=REST_OF_CONTEXT)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
TopK = Annotated[int, Field(ge=0, le=2**31)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=10)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,10}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_KEYS, json_schema_extra={"additionalProperties": False}),
]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
TopLogprobs = Annotated[int, Field(ge=0, le=20)]
Characters = Annotated[int, Field(ge=0, le=2**31)]
ThinkingBudget = Annotated[int, Field(ge=0, le=2**31)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TimeoutMs = Annotated[int, Field(ge=1, le=86_400_000)]


class Requirements(StrictInput):
    """The hardware that a request requires."""

    min_memory_gb: float | None = Field(None, ge=0)
    chip: ShortName | None = None
    accelerator: ShortName | None = None
    labels: Annotated[dict[ShortName, ShortName], Field(max_length=64)] = {}


class SentCharacters(StrictInput):
    """The characters of an answer that its client has received: of content, of reasoning, and of
    the arguments of each tool call."""

    text: Characters = 0
    reasoning: Characters = 0
    tool_calls: Annotated[list[Characters], Field(max_length=MAX_CALLS, fail_fast=True)] = []

    def __add__(self, later: "SentCharacters") -> "SentCharacters":
        """Add a later part of the same answer; calls are matched from the first one on."""
        calls = zip_longest(self.tool_calls, later.tool_calls, fillvalue=0)
        return SentCharacters(
            text=self.text + later.text,
            reasoning=self.reasoning + later.reasoning,
            tool_calls=[before + after for before, after in calls],
        )


class Resume(StrictInput):
    """The received part of a stream that broke off: its tokens, and their characters. `text_sent`
    is a short form of `sent.text`, for answers without reasoning and calls."""

    token_ids: Annotated[list[TokenId], Field(max_length=MAX_VALUES, fail_fast=True)]
    text_sent: Characters = 0
    sent: SentCharacters | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.sent is not None and self.text_sent not in (0, self.sent.text):
            raise ValueError("text_sent: differs from `sent.text`")
        return self

    @property
    def characters(self) -> SentCharacters:
        return self.sent or SentCharacters(text=self.text_sent)


class InferenceRequest(Tools):
    """A request that a client publishes on `mlx.infer.<client>.<skill>`."""

    model: ModelName | None = None
    messages: Messages | None = None
    prompt: Prompt | None = None
    input: Input | None = Field(
        None, description="texts to embed: each choice of the answer has one `embedding`"
    )
    dimensions: Dimensions | None = Field(
        None, description="length of the embeddings, if the model can shorten them"
    )
    prompt_name: ModelName | None = Field(
        None, description="which of the model's own prompts precedes each text of `input`"
    )
    query: Query | None = Field(
        None,
        description="score each text of `input` for this query instead of embedding it; a list "
        "has one query per text",
    )
    truncate: bool = Field(
        False, description="cut texts of `input` that are too long, instead of failing"
    )

    max_tokens: MaxTokens | None = Field(
        None, description="default: 512, or less if the model's context is shorter"
    )
    temperature: Temperature = 1.0
    top_p: Share = 1.0
    top_k: TopK = 0
    min_p: Share = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: LogitBias = {}
    stop: StopString | StopStrings | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] = []
    ignore_eos: bool = Field(False, description="continue where the model would end its answer")
    seed: Seed | None = None
    n: Choices = 1
    logprobs: TopLogprobs | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    reasoning_effort: ReasoningEffort | None = Field(
        None,
        description="amount of reasoning, for the model's chat template; `none` turns reasoning "
        "off if the model supports that",
    )
    thinking_budget: ThinkingBudget | None = Field(
        None, description="maximum number of reasoning tokens; `max_tokens` counts them, too"
    )
    chat_template_kwargs: TemplateValues = Field(
        {}, description="variables for the chat template, besides messages and tools"
    )

    continue_final_message: bool = Field(
        False, description="continue the last message, the assistant's, instead of answering it"
    )
    count_only: bool = Field(False, description="only count the prompt's tokens, for `usage`")
    stream: bool = True
    multiplex: bool = False

    request_id: RequestId | None = Field(None, pattern=ID_PATTERN)
    session_id: str | None = Field(None, pattern=ID_PATTERN)
    affinity: str | None = Field(
        None,
        pattern=ID_PATTERN,
        description="requests that share it go to the worker of the previous one, unless another "
        "worker is faster; they are served in any order",
    )
    history: Literal["sent", "kept"] | None = Field(
        None,
        description="whether messages are the whole conversation, or only the new ones of the "
        "session; by default detected from the first messages",
    )
    priority: PriorityName = "medium"
    requires: Requirements | None = None
    timeout_ms: TimeoutMs = 120_000
    debug: bool = Field(
        False,
        description="report in the terminal message, under `route`, how the worker was selected",
    )
    resume: Resume | None = None

    @model_validator(mode="after")
    def _one_kind_of_input(self) -> Self:
        if bool(self.messages) + bool(self.prompt) + bool(self.input) != 1:
            raise ValueError("exactly one of messages, prompt and input is needed")
        if self.embeds:
            self._check_embedding()
        elif name := next(
            (name for name in _OF_INPUT if getattr(self, name) not in (None, False)), None
        ):
            raise ValueError(f"{name}: it goes with `input` only")
        elif self.choices > MAX_CHOICES:
            raise ValueError(f"n: times the number of prompts it must be at most {MAX_CHOICES}")
        if self.history == "kept" and (self.session_id is None or not self.messages):
            raise ValueError("history: `kept` goes with session_id and messages only")
        if self.tools and not self.messages:
            raise ValueError("tools: they go with messages only")
        free = self.response_format is None or self.response_format.structure is None
        if self.structured_outputs is not None and not free:
            raise ValueError("structured_outputs: `response_format` says already what to answer")
        if self.resume is not None and self.choices > 1:
            raise ValueError("resume: it works for a single choice only")
        return self

    def _check_embedding(self) -> None:
        """Raises ValueError: a field requires that the model generates."""
        for name in ("resume", "response_format", "structured_outputs", "session_id", "logprobs"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: it does not go with `input`")
        for name in ("count_only", "continue_final_message"):
            if getattr(self, name):
                raise ValueError(f"{name}: it does not go with `input`")
        if self.n > 1:
            raise ValueError("n: a text of `input` has one embedding or score")
        if self.query is not None:
            self._check_scoring(self.query)

    def _check_scoring(self, query: str | list[str]) -> None:
        """Raises ValueError: the texts cannot be scored for the query."""
        for name in ("dimensions", "prompt_name"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: it does not go with `query`")
        if not all(isinstance(text, str) for text in self.prompts):
            raise ValueError("input: with `query` it must be texts, not tokens")
        if isinstance(query, list) and len(query) != len(self.prompts):
            raise ValueError(
                f"query: {len(query)} queries for {len(self.prompts)} texts; one for each, or one "
                "for all, is needed"
            )

    @model_validator(mode="after")
    def _may_continue(self) -> Self:
        if not self.continue_final_message:
            return self
        last = self.messages[-1] if self.messages else None
        problem = continuation_problem(
            last,
            bound=self.structure is not None or self.must_call,
            thinks=bool(self.thinking_budget) or self.reasoning_effort not in (None, "none"),
        )
        if problem is None and self.history == "kept":
            problem = "it goes with the whole conversation"
        if problem is not None:
            raise ValueError(f"continue_final_message: {problem}")
        return self

    @property
    def turns(self) -> list[Turn]:
        """The messages in the form that a chat template reads."""
        return [each.turn for each in self.messages or []]

    @property
    def tools_json(self) -> bytes:
        """The tools in the prompt, as JSON; empty without any."""
        if not self.tools:
            return b""
        tools = [tool.model_dump(exclude_none=True) for tool in self.usable_tools]
        return orjson.dumps(tools, option=orjson.OPT_SORT_KEYS) if tools else b""

    def text_bytes(self, turns: Sequence[Turn]) -> int:
        """Return the bytes of the prompt that was sent as text, in UTF-8, with `turns` as
        messages."""
        inputs = [prompt for prompt in self.prompts if isinstance(prompt, str)]
        inputs += self.queries
        return len(self.tools_json) + sum(map(turn_bytes, turns)) + sum(map(utf8_bytes, inputs))

    @property
    def structure(self) -> Structure | None:
        """The constraint of the content, if any."""
        constraint = self.structured_outputs or self.response_format
        return constraint.structure if constraint is not None else None

    @property
    def ordered_session(self) -> str | None:
        """The session whose turns are served in order. A session id that begins with `auto-`, as
        created by older gateways, is only an affinity."""
        session = self.session_id
        if session is None or self.count_only or session.startswith(DERIVED_SESSION):
            return None
        return session

    @property
    def cache_session(self) -> str | None:
        """The session id under which workers cache the request: its own, or one from its
        affinity."""
        if self.session_id is not None or self.affinity is None:
            return self.session_id
        return f"{DERIVED_SESSION}{self.affinity}"

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The plain prompts, or the texts to embed, as a list; empty for a request with
        `messages`."""
        given = self.prompt if self.input is None else self.input
        match given:
            case None:
                return []
            case str(text):
                return [text]
            case [int(), *_]:
                return [given]  # type: ignore[return-value]
            case _:
                return given  # type: ignore[return-value]

    @property
    def embeds(self) -> bool:
        """Whether the answer is embeddings or scores of texts, not generated tokens."""
        return self.input is not None

    @property
    def queries(self) -> list[str]:
        """The query of each text to score; empty for texts to embed, and without texts."""
        if self.query is None:
            return []
        if isinstance(self.query, str):
            return [self.query] * len(self.prompts)
        return self.query

    @property
    def slots(self) -> int:
        """The batch slots that the answer takes: one per choice; embedding needs none."""
        return 0 if self.embeds else self.choices

    @property
    def received_ids(self) -> list[int]:
        """The tokens of the answer that the client has received already."""
        return self.resume.token_ids if self.resume is not None else []

    @property
    def choices(self) -> int:
        """The number of answers: `n` per prompt."""
        return self.n * max(1, len(self.prompts))

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else (self.stop or [])

    @property
    def level(self) -> Priority:
        """The priority under its canonical name. `count_only` has the highest: it delays no other
        request."""
        return PRIORITIES[0] if self.count_only else canonical_priority(self.priority)

    def fingerprint(self) -> str:
        """Return a hash of the body without its id and `resume`: the same id with another
        fingerprint is a conflict."""
        if not any(getattr(self, name) for name in _WITH_KEYS):  # most requests; much cheaper
            exclude = {"request_id", "resume"}
            body = self.__pydantic_serializer__.to_json(
                self, exclude=exclude, exclude_defaults=True
            )
            return hashlib.sha256(body).hexdigest()
        fields = self.model_dump(exclude={"request_id", "resume"}, exclude_defaults=True)
        body = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(body).hexdigest()


_WITH_KEYS = (
    "logit_bias", "tools", "response_format", "structured_outputs", "chat_template_kwargs",
    "requires",
)  # fmt: skip
"""Fields with keys, which a client may write in any order."""
