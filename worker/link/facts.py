"""Facts: what an engine reports to its agent, in the past tense.

Agent and engine belong to one release and start together, so facts have no protocol number.
Sequences have the numbers that the agent gave them.
"""

from dataclasses import dataclass, field
from typing import Any

from shared.ids import ModelId
from shared.messages.model_status import Batching
from shared.messages.stream import FinishReason


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The first fact of an engine; `blas` and `device` as `worker --check` prints them."""

    device: str
    accelerator: str
    blas: str
    threads: int
    memory_limit_bytes: int
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """`progress` from 0 to 1."""

    model: ModelId
    progress: float


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """`abilities`, `warnings`, `batching` and `batching_reason` are as in `ModelStatus`."""

    model: ModelId
    max_context_tokens: int
    memory_bytes: int
    abilities: list[str]
    warnings: list[str] = field(default_factory=list)
    batching: Batching = "together"
    batching_reason: str | None = None
    probe_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFailed:
    model: ModelId
    message: str


@dataclass(frozen=True, slots=True)
class PrefillStarted:
    """The prompt was tokenized and its prefill begins."""

    sequence: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class PrefixReused:
    """The first `tokens` tokens of a sequence were in KV memory."""

    sequence: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SequenceCached:
    """A sequence left its batch; `tokens` of its tokens are cached, and the last cached block is
    `end`. The engine tracks it from now on."""

    sequence: int
    end: str
    tokens: int


@dataclass(frozen=True, slots=True)
class CachedSequenceMeasurements:
    """How much is cached of the sequence that ends with the block `end`; for the other fields see
    `SequenceCacheUsage`."""

    end: str
    tokens: int
    memory_tokens: int
    memory_bytes: int
    disk_bytes: int
    own_bytes: int


@dataclass(frozen=True, slots=True)
class CachedSequencesMeasured:
    """The tracked sequences whose cached part changed."""

    sequences: list[CachedSequenceMeasurements]


@dataclass(frozen=True, slots=True)
class PrefillAdvanced:
    """`done` of `total` prompt tokens are in the KV cache."""

    sequence: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SequencePreempted:
    """Memory was short: the sequence will be prefilled again and continues where it stopped."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SequenceRejected:
    """The sequence cannot be generated; `code` is a key of `errors.ERROR_CODES`."""

    sequence: int
    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of one tool call; see `worker.answer.parser.CallDelta`."""

    index: int
    arguments: str = ""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """New tokens of one sequence, from `index` on; the fields are those of `ChoiceOutput`, except
    `reasoning_tokens`, which counts those of the whole answer so far, and `warnings`, which the
    terminal message reports."""

    sequence: int
    index: int
    token_ids: list[int]
    text: str
    finish_reason: FinishReason | None = None
    logprobs: list[dict[str, Any]] | None = None
    stop_sequence: str | None = None
    reasoning: str = ""
    calls: list[ToolCallPiece] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reasoning_tokens: int = 0
    embedding: str | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """The outputs of one decode step, or of one pass over texts to embed, in one frame."""

    outputs: list[SequenceOutput]


@dataclass(frozen=True, slots=True)
class BatchMeasurements:
    """The batch of one model; the fields are those of `ModelBatchStatus`, `changes` as JSON.

    Attributes:
        next_step_ms: predicted duration of a step with one more row.
        step_fixed_ms, step_row_ms: a step takes `step_fixed_ms`, and at least `step_row_ms` per
            row.
    """

    model: ModelId
    rows: int
    waiting: int
    limit: int
    step_ms: float
    stability: float
    changes: list[dict[str, Any]]
    next_step_ms: float
    prefill_tokens_per_s: float
    step_fixed_ms: float = 0.0
    step_row_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefixCacheMeasurements:
    """The state of KV memory; the fields are those of `PrefixCacheStatus`."""

    blocks: int = 0
    hits: int = 0
    misses: int = 0
    prompt_tokens: int = 0
    saved_tokens: int = 0
    restore_ms: float = 0.0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    evictions: int = 0
    disk_bytes: int = 0
    disk_limit_bytes: int = 0
    disk_evictions: int = 0
    read_blocks: int = 0
    read_bytes: int = 0
    read_ms: float = 0.0
    promoted_blocks: int = 0
    written_blocks: int = 0
    written_bytes: int = 0
    written_today_bytes: int = 0
    broken_files: int = 0
    failed_files: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class EngineMeasured:
    """Reported about once a second, also while idle, and after `LimitKVCaches`. `kv_bytes` is what
    memory accounting charges; `step_ms` is that of the slowest group."""

    active_sequences: int
    active_memory_bytes: int
    cache_memory_bytes: int
    kv_bytes: int
    kv_budget_bytes: int
    preemptions: int
    step_ms: float
    batches: list[BatchMeasurements] = field(default_factory=list)
    kv_memory: PrefixCacheMeasurements = field(default_factory=PrefixCacheMeasurements)


@dataclass(frozen=True, slots=True)
class EngineAlive:
    """Reported every second by a thread of its own. `stuck_s`: how long the engine's thread has
    been in one step, 0 while it waits for work."""

    stuck_s: float


Fact = (
    EngineStarted
    | ModelLoading
    | ModelLoaded
    | ModelFailed
    | PrefillStarted
    | PrefixReused
    | SequenceCached
    | CachedSequencesMeasured
    | PrefillAdvanced
    | SequencePreempted
    | SequenceRejected
    | StepCompleted
    | EngineMeasured
    | EngineAlive
)
