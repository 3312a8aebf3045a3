"""The state of a worker."""

from typing import Literal

from pydantic import Field

from shared.codec import WireMessagePart
from shared.ids import NAME_PATTERN, BootId, ModelId, WorkerId
from shared.messages.base import Count, Priority, Term
from shared.messages.engine_status import EngineStatus
from shared.messages.model_status import ModelStatus

WorkerState = Literal["starting", "warming", "ready", "draining", "stopped", "unhealthy"]
MemoryPressure = Literal["none", "soft", "hard"]


class Hardware(WireMessagePart):
    """The hardware of a worker; `accelerator` is metal, cuda or cpu."""

    chip: str = ""
    accelerator: str = ""
    cores: Count = 0
    memory_bytes: Count = 0
    os: str = ""


class QueuePriorityStatus(WireMessagePart):
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


class QueueStatus(WireMessagePart):
    """The queue of a worker.

    Attributes:
        room: how many more requests it accepts, per priority.
        drain_per_s: requests per second that left the queue recently.
    """

    levels: dict[Priority, QueuePriorityStatus] = {}
    room: dict[Priority, Count] = {}
    drain_per_s: float = 0.0


class MemoryStatus(WireMessagePart):
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


def rejects(pressure: MemoryPressure, level: Priority) -> bool:
    """Whether a new request of this priority is rejected under this memory pressure."""
    return pressure == "hard" or (pressure == "soft" and level == "low")


class PreWarmingStatus(WireMessagePart):
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


class WorkerReport(WireMessagePart):
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
        generated_tokens: since its start.
        differing_requests: migrated requests that continued here with different output.
        unexpected_errors: exceptions that ended one request, or nothing, instead of the worker;
            each is a fault of this program, and in the log.
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
    generated_tokens: Count = 0
    load_balance: float = 1.0
    completed_requests: Count = 0
    rejected_requests: Count = 0
    failed_requests: Count = 0
    differing_requests: Count = 0
    unexpected_errors: Count = 0
    term: Term = 0
    config_version: Count = 0
    config_problem: str | None = None
    uptime_s: float = 0.0
    tasks: Count = 0

    @property
    def used_slots(self) -> int:
        """Slots in batches that are used or waited for; older workers do not report `choices`."""
        return max(self.active_requests + self.queued_requests, self.choices)
