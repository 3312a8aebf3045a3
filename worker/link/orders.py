"""Orders: what the agent tells an engine to do, in the imperative.

Agent and engine belong to one release and start together, so orders have no protocol number.
The agent numbers sequences; a request has one sequence per choice.
"""

from dataclasses import dataclass, field
from typing import Any

from shared.ids import ModelId
from shared.messages.stream import FinishReason
from shared.messages.structured import Structure


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled; the fields are those of the request."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[str, float]
    seed: int
    logprobs: int | None


@dataclass(frozen=True, slots=True)
class SentCharacters:
    """How much of an answer its client has received; the fields are those of the request."""

    text: int = 0
    reasoning: int = 0
    tool_calls: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ToolCallingOptions:
    """Tools in OpenAI's function format, and how the answer may call them.

    Attributes:
        forced: the tool that the answer must call.
        required: the answer must be a tool call.
        parallel: the answer may contain several tool calls.
    """

    tools: list[dict[str, Any]]
    forced: str | None = None
    required: bool = False
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """How a text is embedded, or scored for a `query`; the fields are those of the request."""

    dimensions: int | None = None
    prompt_name: str | None = None
    query: str | None = None
    truncate: bool = False


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load a model.

    Attributes:
        path: folder of the model.
        max_context_tokens: lowers the model's own context length, and replaces it where the
            model's files do not state one.
        tool_format, reasoning_format: detected from the model's files if None.
        adapter: folder of the adapter to load on top of the model.
        verdicts_file: where the result of probing the model is cached for the next load.
        compares_embeddings: an embedding model scores texts, too, by their similarity.
    """

    model: ModelId
    path: str
    max_context_tokens: int | None = None
    trust_remote_code: bool = False
    tool_format: str | None = None
    reasoning_format: str | None = None
    template_values: dict[str, Any] = field(default_factory=dict)
    adapter: str | None = None
    verdicts_file: str | None = None
    compares_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class UnloadModel:
    model: ModelId


@dataclass(frozen=True, slots=True)
class SubmitSequence:
    """Generate one sequence from `messages` (a chat), `text` or `token_ids`; or embed or score
    `text` or `token_ids`.

    The answer continues after `resumed_ids` and `replayed_ids`.

    Attributes:
        sequence: negative for smoke tests and probes of a model.
        client: whose it is: clients take turns. Empty for smoke tests and probes.
        is_newcomer: other clients have sequences on this worker, and this is the first of this one.
        max_tokens: None for the default, which is lowered for a small context.
        priority: 0 is the highest; when memory is short, lower priorities are preempted first.
        resumed_ids: tokens of the answer that the client has; `sent` counts their characters.
        replayed_ids: tokens that an earlier attempt generated; they are reported again, one
            output per token, as if they were generated now.
        ended: how the earlier attempt ended the answer; reported after `replayed_ids`.
        count_only: only count the tokens of the prompt.
        session: the last tokens of a session are cached on disk, too.
        ignore_eos: continue where the model would end the answer.
        template_values: for the chat template.
        thinking_budget: maximum number of reasoning tokens.
        continues: the answer continues the last message.
        debug: warnings report how messages were reordered.
        embedding: embed or score the text instead.
    """

    sequence: int
    model: ModelId
    messages: list[dict[str, Any]] | None
    text: str | None
    token_ids: list[int] | None
    max_tokens: int | None
    stop: list[str]
    stop_token_ids: list[int]
    sampling: Sampling
    priority: int = 0
    resumed_ids: list[int] = field(default_factory=list)
    sent: SentCharacters = SentCharacters()
    replayed_ids: list[int] = field(default_factory=list)
    ended: FinishReason | None = None
    count_only: bool = False
    session: str | None = None
    ignore_eos: bool = False
    template_values: dict[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    thinking_budget: int | None = None
    continues: bool = False
    debug: bool = False
    calling: ToolCallingOptions | None = None
    structure: Structure | None = None
    embedding: EmbeddingOptions | None = None
    client: str = ""
    is_newcomer: bool = False

    @property
    def is_trial(self) -> bool:
        """Whether the sequence is a smoke test or a probe of a model, not a request's."""
        return self.sequence < 0

    @property
    def answer_ids(self) -> list[int]:
        """The known tokens of the answer."""
        return [*self.resumed_ids, *self.replayed_ids]


@dataclass(frozen=True, slots=True)
class PrefetchPrefix:
    """Read the cached blocks of a prompt that will be submitted later into memory. Reports
    nothing; ignored if the model is not loaded."""

    order: SubmitSequence


@dataclass(frozen=True, slots=True)
class CancelPrefixPrefetch:
    """Stop prefetching for a sequence that will not be submitted to this engine."""

    sequence: int


@dataclass(frozen=True, slots=True)
class CancelSequence:
    sequence: int


@dataclass(frozen=True, slots=True)
class TrackSequence:
    """Report how much is cached of the sequence that ends with this block; if `pinned`, evict
    its blocks after those of others."""

    end: str
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class EvictCachedSequence:
    """Stop tracking a sequence, and evict the blocks that no other sequence has."""

    end: str


@dataclass(frozen=True, slots=True)
class LimitKVCaches:
    """Limit KV caches to `kv_bytes`, even if the engine's own limit is higher; with
    `release_cached_memory` MLX's cached buffers are released now."""

    kv_bytes: int | None
    release_cached_memory: bool = False


@dataclass(frozen=True, slots=True)
class SetBlasThreads:
    """Use this many threads for matrix products from the next step on; only with a BLAS that has
    threads."""

    threads: int


@dataclass(frozen=True, slots=True)
class Stop:
    pass


Order = (
    LoadModel
    | UnloadModel
    | SubmitSequence
    | PrefetchPrefix
    | CancelPrefixPrefetch
    | CancelSequence
    | TrackSequence
    | EvictCachedSequence
    | LimitKVCaches
    | SetBlasThreads
    | Stop
)
