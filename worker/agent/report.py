"""The worker's report, for heartbeats and health."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from shared.ids import BootId, WorkerId
from shared.messages.engine_status import EngineStatus, ModelBatchStatus, PrefixCacheStatus
from shared.messages.worker_report import Hardware, PreWarmingStatus, WorkerReport, WorkerState
from shared.settings import ClusterSettings
from worker.agent.config_switcher import ConfigSwitcher
from worker.agent.request_handler import DISPATCHES_PER_MESSAGE
from worker.engine_process.process import EngineProcess
from worker.host.machine import hardware
from worker.host.process_usage import CpuMeter
from worker.memory.guard import engine_bytes
from worker.scheduling.model_statistics import prefill_ms
from worker.scheduling.scheduler import RequestScheduler

_STATES: dict[str, Literal["starting", "running", "restarting", "failed"]] = {
    "starting": "starting",
    "running": "running",
    "restarting": "restarting",
    "failed": "failed",
    "stopped": "failed",
}


def build_report(
    settings: ClusterSettings,
    scheduler: RequestScheduler,
    pre_warming: PreWarmingStatus,
    cpu: CpuMeter,
    reconfiguration: ConfigSwitcher | None,
    *,
    worker_id: WorkerId,
    boot_id: BootId,
    version: str,
    state: WorkerState,
    term: int,
    uptime_s: float,
    tasks: int,
) -> WorkerReport:
    engines = [_engine(engine, cpu) for engine in scheduler.engines]
    running = [engine.index for engine in engines if engine.state == "running"]
    models = scheduler.model_statuses()
    speeds = {model.id: model.speed for model in models}
    memory = scheduler.guard.status()
    return WorkerReport(
        id=worker_id,
        boot_id=boot_id,
        version=version,
        state=state,
        active_requests=scheduler.running,
        queued_requests=len(scheduler.admission),
        choices=sum(len(r.unfinished) for r in scheduler.requests() if not r.embeds),
        max_batch_size=settings.worker.continuous_batching.max_rows * len(engines),
        max_queue_depth=scheduler.admission.max_depth,
        prefill_ms=round(prefill_ms(running, scheduler.requests(), speeds), 1),
        dispatches_per_message=DISPATCHES_PER_MESSAGE,
        queue=scheduler.admission.status(),
        models=models,
        pre_warming=pre_warming,
        engines=engines,
        memory_bytes=memory.own_bytes,
        memory=memory,
        cpu_cores=round(cpu.cores(os.getpid()) + sum(engine.cpu_cores for engine in engines), 2),
        hardware=_hardware(scheduler.engines),
        labels=settings.worker.labels,
        tokens_per_s=scheduler.results.throughput.tokens_per_s(),
        generated_tokens=scheduler.results.throughput.total,
        load_balance=scheduler.results.throughput.balance(range(len(engines))),
        completed_requests=scheduler.termination.completed,
        differing_requests=scheduler.results.differing,
        rejected_requests=scheduler.termination.rejected,
        failed_requests=scheduler.termination.failed,
        unexpected_errors=scheduler.isolation.failures,
        term=term,
        config_version=reconfiguration.version if reconfiguration is not None else 0,
        config_problem=reconfiguration.problem if reconfiguration is not None else None,
        uptime_s=round(uptime_s, 1),
        tasks=tasks,
    )


def _engine(engine: EngineProcess, cpu: CpuMeter) -> EngineStatus:
    measured = engine.measured
    return EngineStatus(
        index=engine.index,
        pid=engine.pid,
        state=_STATES[engine.state],
        restarts=engine.restarts,
        active_sequences=measured.active_sequences,
        memory_bytes=engine_bytes(engine),
        kv_bytes=measured.kv_bytes,
        kv_budget_bytes=measured.kv_budget_bytes,
        preemptions=measured.preemptions,
        step_ms=measured.step_ms,
        threads=engine.threads,
        cpu_cores=cpu.cores(engine.pid),
        batches=[ModelBatchStatus.model_validate(asdict(batch)) for batch in measured.batches],
        kv_memory=PrefixCacheStatus.model_validate(asdict(measured.kv_memory)),
    )


def _hardware(engines: Sequence[EngineProcess]) -> Hardware:
    started = next((engine.started for engine in engines if engine.started), None)
    return hardware(started.device, started.accelerator) if started else hardware()
