"""The worker's state as controllers and people see it."""

import os
from typing import Literal

from shared.ids import BootId, WorkerId
from shared.messages.events import EngineStatus, Hardware, WorkerReport, WorkerState
from shared.settings import ClusterSettings
from worker.engine_process import EngineProcess
from worker.footprint import footprint_bytes
from worker.machine import hardware
from worker.scheduler import Scheduler

_STATES: dict[str, Literal["starting", "running", "restarting", "failed"]] = {
    "starting": "starting",
    "running": "running",
    "restarting": "restarting",
    "failed": "failed",
    "stopped": "failed",
}


def build_report(
    settings: ClusterSettings,
    scheduler: Scheduler,
    *,
    worker_id: WorkerId,
    boot_id: BootId,
    version: str,
    state: WorkerState,
    uptime_s: float,
    tasks: int,
) -> WorkerReport:
    engines = [_engine(engine) for engine in scheduler.engines]
    own_memory = footprint_bytes([os.getpid()])
    return WorkerReport(
        id=worker_id,
        boot_id=boot_id,
        version=version,
        state=state,
        active_requests=scheduler.running,
        queued_requests=scheduler.queued,
        max_batch_size=settings.worker.continuous_batching.max_batch_size * len(engines),
        max_queue_depth=scheduler.max_queue_depth,
        queue=scheduler.queue_status,
        models=[model.status(scheduler.active_on(model.id)) for model in scheduler.models],
        engines=engines,
        memory_bytes=own_memory + sum(engine.memory_bytes for engine in engines),
        hardware=_hardware(scheduler.engines),
        labels=settings.worker.labels,
        tokens_per_s=scheduler.throughput.tokens_per_s(),
        load_balance=scheduler.throughput.balance(range(len(engines))),
        completed_requests=scheduler.completed,
        failed_requests=scheduler.failed,
        uptime_s=round(uptime_s, 1),
        tasks=tasks,
    )


def _engine(engine: EngineProcess) -> EngineStatus:
    """Where a footprint omits the device's buffers (CUDA), MLX's own count is the larger."""
    resident = footprint_bytes([engine.pid]) if engine.pid else 0
    mlx = engine.measured.active_memory_bytes + engine.measured.cache_memory_bytes
    return EngineStatus(
        index=engine.index,
        pid=engine.pid,
        state=_STATES[engine.state],
        restarts=engine.restarts,
        active_sequences=engine.measured.active_sequences,
        memory_bytes=max(resident, mlx),
        kv_bytes=engine.measured.kv_bytes,
        kv_budget_bytes=engine.measured.kv_budget_bytes,
        preemptions=engine.measured.preemptions,
        step_ms=engine.measured.step_ms,
        threads=engine.threads,
    )


def _hardware(engines: list[EngineProcess]) -> Hardware:
    started = next((engine.started for engine in engines if engine.started), None)
    return hardware(started.device, started.accelerator) if started else hardware()
