"""The state of an engine process: its batches and its KV memory."""

from typing import Literal

from shared.codec import WireMessagePart
from shared.ids import ModelId
from shared.messages.base import Count


class BatchResize(WireMessagePart):
    """A change of an adaptive batch size, `ago_s` seconds ago, and its reason."""

    ago_s: float
    before: int
    after: int
    latency_ms: float
    reason: str


class ModelBatchStatus(WireMessagePart):
    """The batch of one model in one engine.

    Attributes:
        rows: sequences that decode.
        waiting: sequences that are in the engine and do not decode yet.
        limit: maximum number of rows that decode at once (`adaptive_batching`).
        step_ms: mean duration of a step.
        step_fixed_ms, step_row_ms: fixed duration of a step, and its least duration per row.
        stability: the share of the last evaluations that changed nothing, 0 to 1.
        changes: the last changes of the limit, oldest first.
    """

    model: ModelId
    rows: Count = 0
    waiting: Count = 0
    limit: Count = 0
    step_ms: float = 0.0
    step_fixed_ms: float = 0.0
    step_row_ms: float = 0.0
    stability: float = 1.0
    changes: list[BatchResize] = []


class PrefixCacheStatus(WireMessagePart):
    """The KV memory of an engine: cached blocks, so that a prefix is not computed again. Counts are
    since its start.

    Attributes:
        blocks: cached blocks, in memory or on disk.
        hits, misses: prompts with and without cached tokens.
        prompt_tokens: of all prompts.
        saved_tokens: the cached tokens among them.
        restore_ms: mean duration of restoring cached blocks into a KV cache.
        memory_bytes: of at most `memory_limit_bytes`, which is lower while requests use the memory.
        evictions, disk_evictions: blocks that were evicted from memory, and from disk.
        disk_bytes: size of the files, of at most `disk_limit_bytes`; 0 without files.
        read_ms: mean duration of reading a file.
        promoted_blocks: those of `read_blocks` that were prefetched for queued requests.
        written_today_bytes: since midnight, UTC.
        broken_files: damaged files, which were deleted.
        failed_files: files that could not be read or written.
        problem: why nothing is written to disk now, or None.
    """

    blocks: Count = 0
    hits: Count = 0
    misses: Count = 0
    prompt_tokens: Count = 0
    saved_tokens: Count = 0
    restore_ms: float = 0.0
    memory_bytes: Count = 0
    memory_limit_bytes: Count = 0
    evictions: Count = 0
    disk_bytes: Count = 0
    disk_limit_bytes: Count = 0
    disk_evictions: Count = 0
    read_blocks: Count = 0
    read_bytes: Count = 0
    read_ms: float = 0.0
    promoted_blocks: Count = 0
    written_blocks: Count = 0
    written_bytes: Count = 0
    written_today_bytes: Count = 0
    broken_files: Count = 0
    failed_files: Count = 0
    problem: str | None = None


class EngineStatus(WireMessagePart):
    """One engine process of a worker.

    Attributes:
        kv_bytes: used by the KV caches of running requests, of `kv_budget_bytes`.
        preemptions: preempted sequences since its start, because of that limit.
        step_ms: recent duration of a decode step.
        cpu_cores: number of cores that it kept busy recently.
    """

    index: int
    pid: int | None = None
    state: Literal["starting", "running", "restarting", "failed"]
    restarts: Count = 0
    active_sequences: Count = 0
    memory_bytes: Count = 0
    kv_bytes: Count = 0
    kv_budget_bytes: Count = 0
    preemptions: Count = 0
    step_ms: float = 0.0
    threads: Count = 0
    cpu_cores: float = 0.0
    batches: list[ModelBatchStatus] = []
    kv_memory: PrefixCacheStatus = PrefixCacheStatus()
