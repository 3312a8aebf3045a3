"""Events: facts that workers and controllers report to the controllers. All past tense."""

from typing import Annotated, Literal

from pydantic import Field

from shared.codec import InternalMessage, InternalPart
from shared.ids import NAME_PATTERN, BootId, ClientName, ControllerId, ModelId, RequestId, WorkerId
from shared.messages.request import Priority
from shared.messages.stream import FinishReason

WorkerState = Literal["starting", "warming", "ready", "draining", "stopped", "unhealthy"]
ControllerState = Literal["starting", "ready", "draining", "stopped"]
ModelState = Literal["available", "loading", "warm", "failed"]
LoadPhase = Literal["downloading", "loading", "warming"]
MemoryPressure = Literal["none", "soft", "hard"]
Batching = Literal["together", "alone"]
"""Whether the rows of a model decode in one batch, or one at a time."""
ABILITIES = ("tools", "schema", "reasoning", "continuation")
"""Abilities of a model beyond free text: tool calls, schemas, reasoning, continuation."""


Count = Annotated[int, Field(ge=0, lt=2**63)]


class Hardware(InternalPart):
    """The hardware of a worker; `accelerator` is metal, cuda or cpu."""

    chip: str = ""
    accelerator: str = ""
    cores: Count = 0
    memory_bytes: Count = 0
    os: str = ""


TYPICAL_BYTES_PER_TOKEN = 4.0
"""For English; used until the tokens of a model have been measured."""
TYPICAL_ANSWER_TOKENS = 100.0
"""Assumed until a model's own answers have been measured."""
TYPICAL_ANSWER_WEIGHT = 4
"""The assumption counts as this many answers, so that one short answer does not dominate."""


class ModelSpeed(InternalPart):
    """The recently measured speed of a model on a worker; 0 if it was not measured yet.

    Attributes:
        prefill_tokens_per_s: prompt tokens per second of one engine.
        step_ms: duration of a decode step with one row more than now.
        rows: maximum number of rows that decode at once, in all engines that hold the model.
        bytes_per_token: of prompts that were sent as text, in UTF-8.
        prefill_share: share of prompt tokens that were not cached, 0 to 1.
        answer_tokens: mean length of an answer; includes a typical value until there are several.
        load_ms: duration of loading the model.
    """

    prefill_tokens_per_s: float = 0.0
    step_ms: float = 0.0
    rows: Count = 0
    bytes_per_token: float = 0.0
    prefill_share: float = 1.0
    answer_tokens: float = 0.0
    load_ms: float = 0.0


class ModelStatus(InternalPart):
    """One model on one worker.

    Attributes:
        progress: of `phase`, 0 to 1, while the model is loading.
        error: why the last load failed.
        size_bytes: of its weights; 0 if unknown.
        idle_s: since its last use; None while it is in use or not loaded.
        abilities: a subset of `ABILITIES`; before the first load, those that it may have. None if
            they are unknown to the worker.
        warnings: sentences about assumptions and omissions when it was loaded.
        batching: the batching verdict; None before it was loaded.
        batching_reason: why the verdict is `alone`.
        probe_ms: duration of the probe, if the verdict was not known before.
    """

    id: ModelId
    state: ModelState
    phase: LoadPhase | None = None
    progress: float | None = None
    error: str | None = None
    priority: Priority = "medium"
    pinned: bool = False
    size_bytes: Count = 0
    active_requests: Count = 0
    queued_requests: Count = 0
    idle_s: float | None = None
    max_context_tokens: int | None = None
    abilities: list[str] | None = None
    warnings: list[str] = []
    batching: Batching | None = None
    batching_reason: str | None = None
    probe_ms: float | None = None
    speed: ModelSpeed = ModelSpeed()


class BatchChange(InternalPart):
    """A change of an adaptive batch size, `ago_s` seconds ago, and its reason."""

    ago_s: float
    before: int
    after: int
    latency_ms: float
    reason: str


class BatchStatus(InternalPart):
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
    changes: list[BatchChange] = []


class KVMemoryStatus(InternalPart):
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


class EngineStatus(InternalPart):
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
    batches: list[BatchStatus] = []
    kv_memory: KVMemoryStatus = KVMemoryStatus()


class LevelStatus(InternalPart):
    """The requests of one priority in a worker's queue. Counts are since its start.

    Attributes:
        rejected: requests that were rejected by the full queue.
        dropped: queued requests that were displaced by a higher priority, or waited too long.
        promoted: promotions of requests that had waited long.
        wait_p50_ms, wait_p95_ms: of the recently admitted requests.
    """

    queued: Count = 0
    admitted: Count = 0
    rejected: Count = 0
    dropped: Count = 0
    promoted: Count = 0
    wait_p50_ms: float = 0.0
    wait_p95_ms: float = 0.0


class QueueStatus(InternalPart):
    """The queue of a worker.

    Attributes:
        room: how many more requests it accepts, per priority.
        drain_per_s: requests per second that left the queue recently.
    """

    levels: dict[Priority, LevelStatus] = {}
    room: dict[Priority, Count] = {}
    drain_per_s: float = 0.0


class MemoryStatus(InternalPart):
    """The memory use and limits of a worker.

    Attributes:
        own_bytes: used by the agent and its engines.
        available_bytes: available memory of the machine.
        soft_bytes: above this limit idle models are evicted, and low priority is rejected.
        hard_bytes: above this limit all requests are rejected, and sequences are preempted.
        evictions: models that were unloaded for others, or because of memory pressure.
        refusals: requests and loads that were rejected because of memory pressure.
    """

    own_bytes: Count = 0
    available_bytes: Count = 0
    soft_bytes: Count = 0
    hard_bytes: Count = 0
    pressure: MemoryPressure = "none"
    evictions: Count = 0
    refusals: Count = 0


MEMORY_RETRY_AFTER_MS = 2000
"""`retry_after_ms` of a rejection because of memory pressure."""


def refuses(pressure: MemoryPressure, level: Priority) -> bool:
    """Whether a new request of this priority is rejected under this memory pressure."""
    return pressure == "hard" or (pressure == "soft" and level == "low")


class PreWarmingStatus(InternalPart):
    """The progress of pre-warming.

    Attributes:
        in_progress: models that are being loaded.
        proposed: models that the prediction would load next, the best first.
    """

    total: Count = 0
    completed: Count = 0
    failed: Count = 0
    in_progress: list[ModelId] = []
    proposed: list[ModelId] = []


class WorkerReport(InternalPart):
    """The whole state of a worker, in heartbeats and health replies.

    Attributes:
        choices: unfinished choices of its requests: each takes a slot in a batch.
        prefill_ms: predicted time until the prompts of its requests are computed, of the engine
            that is done first.
        dispatches_per_message: maximum number of dispatches that it accepts in one message.
        memory_bytes: used by MLX and the processes of the worker.
        cpu_cores: number of cores that its processes kept busy recently.
        load_balance: of the engines: 1 if all generated the same recently, 1 / engines if one
            generated everything.
        term: of the controller that claimed this boot; 0 without a claim.
        config_version: of the rolled-out cluster.yaml; 0 for the machine's own file.
        config_problem: why that is not the latest rolled-out version, or None.
        differing_requests: migrated requests that continued here with different output.
        uptime_s: since this boot.
        tasks: of the agent's event loop; a number that only grows is a leak.
    """

    id: WorkerId = Field(pattern=NAME_PATTERN)
    boot_id: BootId = Field(pattern=NAME_PATTERN)
    version: str
    state: WorkerState
    active_requests: Count = 0
    queued_requests: Count = 0
    choices: Count = 0
    max_batch_size: Count = 0
    max_queue_depth: Count = 0
    prefill_ms: float = 0.0
    dispatches_per_message: Count = 1
    queue: QueueStatus = QueueStatus()
    models: list[ModelStatus] = []
    pre_warming: PreWarmingStatus = PreWarmingStatus()
    engines: list[EngineStatus] = []
    memory_bytes: Count = 0
    memory: MemoryStatus = MemoryStatus()
    cpu_cores: float = 0.0
    hardware: Hardware = Hardware()
    labels: dict[str, str] = {}
    tokens_per_s: float = 0.0
    load_balance: float = 1.0
    completed_requests: Count = 0
    rejected_requests: Count = 0
    failed_requests: Count = 0
    differing_requests: Count = 0
    term: Count = 0
    config_version: Count = 0
    config_problem: str | None = None
    uptime_s: float = 0.0
    tasks: Count = 0

    @property
    def places_taken(self) -> int:
        """Slots in batches that are used or waited for; older workers do not report `choices`."""
        return max(self.active_requests + self.queued_requests, self.choices)


Tier = Literal["memory", "disk"]


class KeptPrefixes(InternalMessage):
    """The cached prefixes of a worker, so that requests with the same prefix are routed to it.

    At most 500 links of the chains of `shared/messages/prefixes.py` and 500 sessions, the most
    recently used ones, as hexadecimal digits. Every 5 s the changes, or `whole` in reply to the
    order `kept`.

    Attributes:
        number: of this message; a controller that missed one queries the whole.
        whole: the message has everything that is cached.
        links: new ones, and those with a new tier.
        sessions: likewise, with the number of their answered turns.
        gone: links and sessions that are not cached any more.
    """

    worker: WorkerId
    boot_id: BootId
    number: Count
    whole: bool = False
    links: dict[str, Tier] = {}
    sessions: dict[str, Count] = {}
    gone: list[str] = []


EventType = Literal["joined", "heartbeat", "state_changed", "left"]


class WorkerEvent(InternalMessage):
    """A worker's event for all controllers, always with its whole state."""

    type: EventType
    worker: WorkerReport


class ControllerReport(InternalPart):
    """The state of a controller, in heartbeats and health replies.

    Attributes:
        active_requests, accepted_requests, completed_requests, rejected_requests, failed_requests:
            of clients; a list of prompts counts as one. Rejected requests ended because of an error
            in the request.
        waiting_requests: requests in the wait queue; a list counts per prompt.
        retries: failed attempts that were followed by another one.
        migrations: those among them that had emitted tokens.
        adoptions: requests that were taken over from dead controllers.
        sticky_turns, moved_turns: turns of sessions that were served by the worker of the previous
            turn, and by another one.
        breakers: open and half-open circuit breakers, by worker.
        leader: it leads: only the leader accepts requests.
        term: its own, or that of the last known leader; rises with each leader.
        leader_problem: why it can never lead in this state, or None.
        config_version: of the rolled-out cluster.yaml; 0 for the machine's own file.
        needs_restart: some settings of this version take effect only after a restart.
    """

    id: ControllerId = Field(pattern=NAME_PATTERN)
    boot_id: BootId = Field(pattern=NAME_PATTERN)
    version: str
    state: ControllerState
    active_requests: Count = 0
    accepted_requests: Count = 0
    completed_requests: Count = 0
    rejected_requests: Count = 0
    failed_requests: Count = 0
    waiting_requests: Count = 0
    retries: Count = 0
    migrations: Count = 0
    adoptions: Count = 0
    sticky_turns: Count = 0
    moved_turns: Count = 0
    breakers: dict[WorkerId, Literal["half-open", "open"]] = {}
    workers: Count = 0
    leader: bool = False
    term: Count = 0
    leader_problem: str | None = None
    config_version: Count = 0
    needs_restart: bool = False
    uptime_s: float = 0.0
    tasks: Count = 0


class LeaseRecord(InternalMessage):
    """The leader's lease in JetStream.

    Attributes:
        term: one higher than that of the previous leader. Every order of a leader carries it, and
            attempts of term t are counted from 1000 * (t - 1) + 1, so that no number is used twice.
        released: the controller does not lead any more; another one may lead at once.
    """

    controller: ControllerId = Field(pattern=NAME_PATTERN)
    boot_id: BootId = Field(pattern=NAME_PATTERN)
    term: Count = 0
    released: bool = False


class ControllerEvent(InternalMessage):
    """A controller's event for all controllers, always with its whole state."""

    type: EventType
    controller: ControllerReport


class TokensEmitted(InternalPart):
    """New tokens of one choice; published before the client gets them.

    Attributes:
        finish_reason: with the last tokens of a choice, if there are other choices.
        cached_tokens: of the prompts; with the first tokens.
    """

    type: Literal["tokens"] = "tokens"
    request_id: RequestId
    client: ClientName
    attempt: int
    choice: int
    index: int
    token_ids: list[int]
    text_sent: int
    finish_reason: FinishReason | None = None
    cached_tokens: Count | None = None


class RequestFinished(InternalPart):
    """A request completed; the worker has sent, or is about to send, its `done`."""

    type: Literal["finished"] = "finished"
    request_id: RequestId
    client: ClientName
    attempt: int


class RequestFailed(InternalPart):
    """An attempt failed.

    Attributes:
        terminal_sent: the client has the terminal message; if not, the request may migrate.
        suspect: the request may have crashed an engine.
    """

    type: Literal["failed"] = "failed"
    request_id: RequestId
    client: ClientName
    attempt: int
    code: str
    message: str
    retry_after_ms: int | None = None
    terminal_sent: bool = True
    suspect: bool = False


RequestEvent = Annotated[
    TokensEmitted | RequestFinished | RequestFailed, Field(discriminator="type")
]


class RequestEvents(InternalMessage):
    """All events of one decode step for the requests of one controller, in one message."""

    worker: WorkerId
    boot_id: BootId
    events: list[RequestEvent]
