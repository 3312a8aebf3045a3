"""The figures of a worker are those of its report, at each scrape."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shared.ids import ModelId
from shared.messages.engine_status import EngineStatus, ModelBatchStatus, PrefixCacheStatus
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import (
    Hardware,
    MemoryStatus,
    QueuePriorityStatus,
    QueueStatus,
    WorkerReport,
)
from shared.refused_messages import RefusedMessages
from tests.controller.values import report as worker_report
from worker.agent.metrics import worker_registry

_DEMO = ModelId("demo")


def _samples(report: WorkerReport) -> dict[tuple[str, ...], float]:
    """By name and values of labels."""
    text = generate_latest(worker_registry(lambda: report, RefusedMessages())).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_each_figure_is_that_of_the_report() -> None:
    kv = PrefixCacheStatus(
        blocks=3, hits=4, misses=1, prompt_tokens=100, saved_tokens=60, memory_bytes=5,
        memory_limit_bytes=9, evictions=2, disk_bytes=7, disk_limit_bytes=8, disk_evictions=1,
        broken_files=1, failed_files=2,
    )  # fmt: skip
    engine = EngineStatus(
        index=1, state="running", restarts=2, step_ms=25.0, kv_bytes=11, preemptions=3,
        batches=[ModelBatchStatus(model=_DEMO, rows=4, waiting=1, limit=8)], kv_memory=kv,
    )  # fmt: skip
    model = ModelStatus(id=_DEMO, state="warm", active_requests=4, queued_requests=2)
    figures = _samples(
        worker_report(
            "w", active_requests=4, completed_requests=10, rejected_requests=1, failed_requests=2,
            generated_tokens=500, engines=[engine], models=[model],
            queue=QueueStatus(levels={"high": QueuePriorityStatus(queued=2, admitted=9)}),
            memory=MemoryStatus(own_bytes=50, soft_bytes=60, hard_bytes=70, pressure="soft"),
            hardware=Hardware(chip="M4", accelerator="metal"),
        )
    )  # fmt: skip
    for sample, value in {
        ("info", "metal", "M4", "0.1.0", "w"): 1,
        ("state", "ready"): 1,
        ("state", "draining"): 0,
        ("active_requests",): 4,
        ("ended_requests_total", "completed"): 10,
        ("ended_requests_total", "rejected"): 1,
        ("tokens_total",): 500,
        ("queued_requests", "high"): 2,
        ("queue_admitted_total", "high"): 9,
        ("memory_bytes",): 50,
        ("memory_limit_bytes", "hard"): 70,
        ("memory_pressure", "soft"): 1,
        ("model_state", "demo", "warm"): 1,
        ("model_state", "demo", "failed"): 0,
        ("model_requests", "demo", "queued"): 2,
        ("engine_up", "1"): 1,
        ("engine_restarts_total", "1"): 2,
        ("engine_step_seconds", "1"): 0.025,
        ("batch_rows", "1", "demo"): 4,
        ("kv_prompts_total", "1", "hit"): 4,
        ("kv_saved_tokens_total", "1"): 60,
        ("kv_bytes", "1", "disk"): 7,
        ("kv_evicted_blocks_total", "1", "memory"): 2,
        ("kv_broken_files_total", "1"): 3,
    }.items():
        assert figures[f"mlx_worker_{sample[0]}", *sample[1:]] == value, sample


def test_a_worker_without_engines_has_figures_too() -> None:
    assert _samples(worker_report("w"))["mlx_worker_active_requests",] == 0
