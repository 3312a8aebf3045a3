"""Reports of workers, as a roll-out looks at them."""

from typing import Any

from shared.ids import BootId, ModelId, WorkerId
from shared.messages.engine_status import BatchResize, EngineStatus, ModelBatchStatus
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import (
    MemoryStatus,
    PreWarmingStatus,
    QueuePriorityStatus,
    QueueStatus,
    WorkerReport,
)


def report(
    name: str = "w1",
    version: int = 0,
    *,
    boot: str = "b1",
    state: Any = "ready",
    completed: int = 0,
    failed: int = 0,
    rejected: int = 0,
    memory_refusals: int = 0,
    pressure: Any = "none",
    engine_restarts: int = 0,
    tokens_per_s: float = 0.0,
    active: int = 0,
    changes_ago_s: tuple[float, ...] = (),
    problem: str | None = None,
    failed_models: tuple[str, ...] = (),
    loading: tuple[str, ...] = (),
) -> WorkerReport:
    changes = [
        BatchResize(ago_s=ago_s, before=1, after=2, latency_ms=1, reason="x")
        for ago_s in changes_ago_s
    ]
    batches = [ModelBatchStatus(model=ModelId("m"), changes=changes)]
    return WorkerReport(
        id=WorkerId(name),
        boot_id=BootId(boot),
        version="1",
        state=state,
        config_version=version,
        config_problem=problem,
        completed_requests=completed,
        failed_requests=failed,
        queue=QueueStatus(levels={"medium": QueuePriorityStatus(rejected=rejected)}),
        memory=MemoryStatus(refusals=memory_refusals, pressure=pressure),
        engines=[EngineStatus(index=0, state="running", restarts=engine_restarts, batches=batches)],
        tokens_per_s=tokens_per_s,
        active_requests=active,
        models=[
            ModelStatus(id=ModelId(one), state="failed", error="no file") for one in failed_models
        ],
        pre_warming=PreWarmingStatus(in_progress=[ModelId(one) for one in loading]),
    )
