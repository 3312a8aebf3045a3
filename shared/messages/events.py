"""What happened: facts that workers and controllers tell the controllers. All past tense."""

from typing import Annotated, Literal

from pydantic import Field

from shared.ids import BootId, ClientName, ControllerId, ModelId, RequestId, WorkerId
from shared.messages.codec import Internal, Part

WorkerState = Literal["starting", "warming", "ready", "draining", "stopped", "unhealthy"]
ControllerState = Literal["starting", "ready", "draining", "stopped"]
ModelState = Literal["available", "loading", "warm", "failed"]


class Hardware(Part):
    """What a worker runs on; `accelerator` is metal, cuda or cpu."""

    chip: str = ""
    accelerator: str = ""
    cores: int = 0
    memory_bytes: int = 0
    os: str = ""


class ModelStatus(Part):
    """One model on one worker; `progress` (0 to 1) while loading, `error` when failed."""

    id: ModelId
    state: ModelState
    progress: float | None = None
    error: str | None = None
    active_requests: int = 0
    max_context_tokens: int | None = None


class EngineStatus(Part):
    """One engine process of a worker."""

    index: int
    pid: int | None
    state: Literal["starting", "running", "restarting", "failed"]
    restarts: int = 0
    active_sequences: int = 0
    memory_bytes: int = 0
    threads: int = 0


class WorkerReport(Part):
    """The whole state of a worker, as heartbeats and health answers carry it.

    Attributes:
        memory_bytes: used by MLX and the processes of the worker.
        uptime_s: since this boot.
    """

    id: WorkerId
    boot_id: BootId
    version: str
    state: WorkerState
    active_requests: int = 0
    queued_requests: int = 0
    max_batch_size: int = 0
    max_queue_depth: int = 0
    models: list[ModelStatus] = []
    engines: list[EngineStatus] = []
    memory_bytes: int = 0
    hardware: Hardware = Hardware()
    labels: dict[str, str] = {}
    tokens_per_s: float = 0.0
    completed_requests: int = 0
    failed_requests: int = 0
    uptime_s: float = 0.0


EventType = Literal["joined", "heartbeat", "state_changed", "left"]


class WorkerEvent(Internal):
    """What a worker tells all controllers, always with its whole state."""

    type: EventType
    worker: WorkerReport


class ControllerReport(Part):
    """The state of a controller, as its heartbeats and health answers carry it."""

    id: ControllerId
    boot_id: BootId
    version: str
    state: ControllerState
    active_requests: int = 0
    accepted_requests: int = 0
    completed_requests: int = 0
    failed_requests: int = 0
    workers: int = 0
    uptime_s: float = 0.0


class ControllerEvent(Internal):
    """What a controller tells all controllers, always with its whole state."""

    type: EventType
    controller: ControllerReport


class TokensEmitted(Part):
    """New tokens of one choice; sent before any client gets them."""

    type: Literal["tokens"] = "tokens"
    request_id: RequestId
    client: ClientName
    attempt: int
    choice: int
    index: int
    token_ids: list[int]
    text_sent: int
    logprobs_sent: int = 0


class RequestFinished(Part):
    """The stream's good end; the worker has sent, or is about to send, its `done`."""

    type: Literal["finished"] = "finished"
    request_id: RequestId
    client: ClientName
    attempt: int


class RequestFailed(Part):
    """The attempt's bad end. `terminal_sent` tells whether the client was told."""

    type: Literal["failed"] = "failed"
    request_id: RequestId
    client: ClientName
    attempt: int
    code: str
    message: str
    terminal_sent: bool = True


RequestEvent = Annotated[
    TokensEmitted | RequestFinished | RequestFailed, Field(discriminator="type")
]


class RequestEvents(Internal):
    """All that one decode step meant for the requests of one owner, in one message."""

    worker: WorkerId
    boot_id: BootId
    events: list[RequestEvent]
