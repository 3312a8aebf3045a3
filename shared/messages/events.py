"""What happened: facts that workers and controllers tell the controllers. All past tense."""

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
"""How rows of a model decode: in one batch, or one at a time."""
ABILITIES = ("tools", "schema", "reasoning", "continuation")
"""What a model can do beyond free text: call tools, keep to a schema, think."""


Count = Annotated[int, Field(ge=0, lt=2**63)]


class Hardware(InternalPart):
    """What a worker runs on; `accelerator` is metal, cuda or cpu."""

    chip: str = ""
    accelerator: str = ""
    cores: Count = 0
    memory_bytes: Count = 0
    os: str = ""


TYPICAL_BYTES_PER_TOKEN = 4.0
"""Of English, while nobody knows what a model's tokens have."""
TYPICAL_ANSWER_TOKENS = 100.0
"""Assumed until a model's own answers have been measured."""
TYPICAL_ANSWER_WEIGHT = 4
"""The assumption counts as this many answers, so that a short first one does not stand for all."""


class ModelSpeed(InternalPart):
    """How fast a worker serves a model, as it measured lately; 0 where it has not yet.

    Attributes:
        prefill_tokens_per_s: prompt tokens that one engine computes in a second.
        step_ms: of a decode step with one row more than now.
        rows: that may decode at once, in all engines that hold the model.
        bytes_per_token: of prompts that came as text, in UTF-8.
        prefill_share: of the tokens of prompts, those that were not kept from before, 0 to 1.
        answer_tokens: of an answer, on average; a guess among the first ones.
        load_ms: what loading it took.
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
        error: why it failed, or was not loaded the last time.
        size_bytes: of its weights; 0 while nobody knows.
        idle_s: since its last use; None while it is in use or not loaded.
        abilities: of `ABILITIES`; before it was loaded for the first time, those that it may have.
            None where the worker knows nothing of them.
        warnings: sentences about what was assumed or left out when it was loaded.
        batching: whether rows of it decode together, or each alone; None before it was loaded.
        batching_reason: why alone.
        probe_ms: what finding that out took, where it was not known before.
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
    """A move of an adaptive batch size, `ago_s` seconds ago, and why."""

    ago_s: float
    before: int
    after: int
    latency_ms: float
    reason: str


class BatchStatus(InternalPart):
    """The batch of one model in one engine.

    Attributes:
        rows: sequences that decode.
        waiting: those that are with the engine and do not decode yet.
        limit: rows that may decode at once (`adaptive_batching`).
        step_ms: how long a step takes, on average.
        step_fixed_ms, step_row_ms: a step takes the one, and at least the other for each row.
        stability: the share of the last judgements that found nothing to change, 0 to 1.
        changes: of the limit, the last ones, oldest first.
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
    """What an engine keeps of texts, so that what begins with them is not computed again; counts
    since its start.

    Attributes:
        blocks: pieces of texts, in memory or on disk.
        hits, misses: prompts of which some tokens were kept, and of which none was.
        prompt_tokens: of all prompts.
        saved_tokens: of them those that were not computed.
        restore_ms: of putting what was kept into caches, on average.
        memory_bytes: of at most `memory_limit_bytes`, which is less while requests need it.
        evictions, disk_evictions: what went because its bytes were needed.
        disk_bytes: what the files take, of at most `disk_limit_bytes`; 0 where none are kept.
        read_ms: of reading a file, on average.
        promoted_blocks: those of `read_blocks` that were read for requests still in the queue.
        written_today_bytes: since midnight, UTC.
        broken_files: found damaged, and deleted.
        failed_files: could not be read or written.
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
        kv_bytes: held by the KV caches of what it serves, of `kv_budget_bytes`.
        preemptions: sequences that gave way since it started, because that was not enough.
        step_ms: of a decode step, lately.
        cpu_cores: how many it kept busy, lately.
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
    """The requests of one priority in a worker's queue; counts since its start.

    Attributes:
        rejected: they found the queue full.
        dropped: they were queued, and gave way to a higher priority or waited too long.
        promoted: how often one rose, for it had waited long.
        wait_p50_ms, wait_p95_ms: of the last ones admitted.
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
        room: how many more requests of a priority it takes.
        drain_per_s: requests that left it in a second, lately.
    """

    levels: dict[Priority, LevelStatus] = {}
    room: dict[Priority, Count] = {}
    drain_per_s: float = 0.0


class MemoryStatus(InternalPart):
    """What a worker holds, and may hold.

    Attributes:
        own_bytes: of the agent and its engines.
        available_bytes: what the machine could hand out besides.
        soft_bytes: above it idle models go and low priority is refused.
        hard_bytes: above it everything new is refused and sequences give way.
        evictions: models that were unloaded for others, or because memory was short.
        refusals: requests and models that were not taken because memory was short.
    """

    own_bytes: Count = 0
    available_bytes: Count = 0
    soft_bytes: Count = 0
    hard_bytes: Count = 0
    pressure: MemoryPressure = "none"
    evictions: Count = 0
    refusals: Count = 0


MEMORY_RETRY_AFTER_MS = 2000
"""When somebody who was refused for want of memory may come again."""


def refuses(pressure: MemoryPressure, level: Priority) -> bool:
    """Whether memory is too short for a new request of this priority."""
    return pressure == "hard" or (pressure == "soft" and level == "low")


class PreWarmingStatus(InternalPart):
    """How far the models are that are loaded before anybody asks for them.

    Attributes:
        in_progress: those that are being loaded.
        proposed: what use so far says should be warm next, the best first.
    """

    total: Count = 0
    completed: Count = 0
    failed: Count = 0
    in_progress: list[ModelId] = []
    proposed: list[ModelId] = []


class WorkerReport(InternalPart):
    """The whole state of a worker, as heartbeats and health answers carry it.

    Attributes:
        choices: answers that its requests wait for: each takes a place in a batch.
        prefill_ms: until the prompts that are here are computed, as far as its speed tells; of the
            engine that is first done.
        dispatches_per_message: so many it takes in one message at most.
        memory_bytes: used by MLX and the processes of the worker.
        cpu_cores: how many its processes kept busy, lately.
        load_balance: of the engines, 1 when all generated the same lately, 1 / engines when one
            did it all.
        term: of the controller that claimed this boot; 0 where none has.
        config_version: of cluster.yaml, as it was rolled out; 0 for the machine's own file.
        config_problem: why that is not the one that was rolled out last, or None.
        differing_requests: that went on here otherwise than they had begun elsewhere.
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
        """In batches, or waited for; older workers do not tell `choices`."""
        return max(self.active_requests + self.queued_requests, self.choices)


Tier = Literal["memory", "disk"]


class KeptPrefixes(InternalMessage):
    """What of prompts a worker keeps, so that what begins alike can be sent there.

    At most 500 links of the chains of `shared/messages/prefixes.py` and 500 sessions, the last
    used ones, as hexadecimal digits; every 5 s what changed, or `whole` to who asks with the order
    `kept`.

    Attributes:
        number: of this message; who missed one asks for the whole.
        whole: nothing else is kept.
        links: those that came, or changed their tier.
        sessions: likewise, with how many of their turns were answered.
        gone: links and sessions that are kept no more.
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
    """What a worker tells all controllers, always with its whole state."""

    type: EventType
    worker: WorkerReport


class ControllerReport(InternalPart):
    """The state of a controller, as its heartbeats and health answers carry it.

    Attributes:
        active_requests, accepted_requests, completed_requests, rejected_requests, failed_requests:
            of clients; a list of prompts is one. Rejected are those that ended because of what
            they ask.
        waiting_requests: those for which no worker has room; of a list each prompt.
        retries: attempts that failed and were followed by another one.
        migrations: of those, the ones that had begun to answer.
        adoptions: requests that were taken over from controllers that are gone.
        sticky_turns, moved_turns: turns of sessions that went where the one before was served, and
            elsewhere.
        breakers: of workers that are left alone, or tried again.
        leader: it leads: it alone takes requests.
        term: of the leader it last heard of, or its own; grows from leader to leader.
        leader_problem: why it cannot lead, however long it waits, or None.
        config_version: of cluster.yaml, as it was rolled out; 0 for the machine's own file.
        needs_restart: some of that holds only when it has started again.
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
    """Who leads, as JetStream keeps it.

    Attributes:
        term: higher by one than that of any leader before. Every order of a leader carries it, and
            attempts of term t are counted from 1000 * (t - 1) + 1, so that no number is given
            twice.
        released: it leads no more; anybody may follow at once.
    """

    controller: ControllerId = Field(pattern=NAME_PATTERN)
    boot_id: BootId = Field(pattern=NAME_PATTERN)
    term: Count = 0
    released: bool = False


class ControllerEvent(InternalMessage):
    """What a controller tells all controllers, always with its whole state."""

    type: EventType
    controller: ControllerReport


class TokensEmitted(InternalPart):
    """New tokens of one choice; sent before any client gets them.

    Attributes:
        finish_reason: where they are its last ones, and there are other choices.
        cached_tokens: of the prompts; told with the first tokens.
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
    """The stream's good end; the worker has sent, or is about to send, its `done`."""

    type: Literal["finished"] = "finished"
    request_id: RequestId
    client: ClientName
    attempt: int


class RequestFailed(InternalPart):
    """The attempt's bad end.

    Attributes:
        terminal_sent: the client was told; where not, another worker may go on with the request.
        suspect: the request may be why an engine ended.
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
    """All that one decode step meant for the requests of one owner, in one message."""

    worker: WorkerId
    boot_id: BootId
    events: list[RequestEvent]
