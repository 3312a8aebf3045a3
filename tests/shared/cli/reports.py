"""Reports of workers in all kinds of states, for views and simulated clusters."""

from shared.ids import BootId, ControllerId, ModelId, SkillName, WorkerId
from shared.messages.controller_report import ControllerReport
from shared.messages.engine_status import (
    BatchResize,
    EngineStatus,
    ModelBatchStatus,
    PrefixCacheStatus,
)
from shared.messages.health import ClusterHealth
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import (
    Hardware,
    MemoryStatus,
    PreWarmingStatus,
    QueuePriorityStatus,
    QueueStatus,
    WorkerReport,
)

GIB = 2**30
WIDE = "模型🦙テスト"
HOSTILE = "[red]x[/red] [/] \x1b[31mred\x1b[0m\nnext line\r\t[link=http://x]"
LONG = "the-weights-of-this-model/" * 20

DEMO = ModelId("demo")
BIG = ModelId("mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit")
M4 = Hardware(chip="Apple M4 Max", accelerator="metal", cores=16, memory_bytes=64 * GIB)


def worker(name: str = "mac-1", **changes: object) -> WorkerReport:
    """A worker that is ready and idle, but for the changes."""
    fields: dict[str, object] = {
        "id": WorkerId(name),
        "boot_id": BootId(f"b-{name}"[:64]),
        "version": "0.1.0",
        "state": "ready",
        "max_batch_size": 32,
        "max_queue_depth": 100,
        "queue": QueueStatus(
            levels={level: QueuePriorityStatus() for level in ("high", "medium", "low")}
        ),
        "models": [warm()],
        "pre_warming": PreWarmingStatus(total=1, completed=1),
        "engines": [EngineStatus(index=0, pid=4711, state="running", kv_budget_bytes=8 * GIB)],
        "memory_bytes": 2 * GIB,
        "memory": MemoryStatus(own_bytes=2 * GIB, soft_bytes=43 * GIB, hard_bytes=48 * GIB),
        "hardware": M4,
        "uptime_s": 3723.0,
    }
    return WorkerReport.model_validate(fields | changes)


def warm(**changes: object) -> ModelStatus:
    fields: dict[str, object] = {
        "id": DEMO, "state": "warm", "size_bytes": GIB // 2, "idle_s": 42.0, "pinned": True,
    }  # fmt: skip
    return ModelStatus.model_validate(fields | changes)


def loading(**changes: object) -> ModelStatus:
    fields: dict[str, object] = {
        "id": BIG, "state": "loading", "phase": "downloading", "progress": 0.43,
        "size_bytes": 17 * GIB, "priority": "high",
    }  # fmt: skip
    return ModelStatus.model_validate(fields | changes)


def failed(error: str = "it needs 17.0 GiB, there are 9.5 GiB", **changes: object) -> ModelStatus:
    fields: dict[str, object] = {"id": BIG, "state": "failed", "error": error}
    return ModelStatus.model_validate(fields | changes)


IDLE = worker()
WARMING = worker(
    "mac-2",
    state="warming",
    models=[warm(), loading(), failed(id=ModelId("broken"), error="no config.json")],
    pre_warming=PreWarmingStatus(total=3, completed=1, failed=1, in_progress=[BIG]),
)
OVERLOADED = worker(
    "mac-3",
    active_requests=32,
    queued_requests=100,
    queue=QueueStatus(
        levels={
            "high": QueuePriorityStatus(queued=3, admitted=40, wait_p50_ms=12.4, wait_p95_ms=180),
            "medium": QueuePriorityStatus(
                queued=80, admitted=310, rejected=41, promoted=17, wait_p50_ms=820, wait_p95_ms=2810
            ),
            "low": QueuePriorityStatus(
                queued=17, admitted=9, rejected=6, dropped=5, wait_p50_ms=9000, wait_p95_ms=75_000
            ),
        },
        drain_per_s=4.2,
    ),
    models=[
        warm(active_requests=20, queued_requests=70, idle_s=None),
        warm(id=BIG, size_bytes=17 * GIB, active_requests=12, queued_requests=30, idle_s=None),
    ],
    engines=[
        EngineStatus(
            index=0,
            pid=50_123,
            state="running",
            restarts=1,
            active_sequences=32,
            memory_bytes=30 * GIB,
            kv_bytes=int(7.9 * GIB),
            kv_budget_bytes=8 * GIB,
            preemptions=12,
            kv_memory=PrefixCacheStatus(
                prompt_tokens=40_000,
                saved_tokens=30_000,
                memory_bytes=int(1.5 * GIB),
                disk_bytes=12 * GIB,
            ),
            step_ms=104.2,
            cpu_cores=1.4,
            batches=[
                ModelBatchStatus(
                    model=DEMO,
                    rows=16,
                    waiting=4,
                    limit=16,
                    step_ms=104.2,
                    stability=0.35,
                    changes=[
                        BatchResize(ago_s=9, before=18, after=16, latency_ms=131, reason="too slow")
                    ],
                ),
                ModelBatchStatus(
                    model=BIG, rows=12, waiting=0, limit=14, step_ms=98.7, stability=0.9
                ),
            ],
        ),
        EngineStatus(index=1, pid=50_124, state="restarting", restarts=2),
    ],
    tokens_per_s=1312.4,
    load_balance=0.5,
    cpu_cores=3.2,
)
PRESSED = worker(
    "mac-4",
    memory_bytes=47 * GIB,
    memory=MemoryStatus(
        own_bytes=47 * GIB, soft_bytes=43 * GIB, hard_bytes=48 * GIB,
        pressure="soft", evictions=2, refusals=7,
    ),
)  # fmt: skip
UNHEALTHY = worker(
    "mac-5",
    state="unhealthy",
    engines=[EngineStatus(index=0, state="failed", restarts=3)],
    models=[failed("loading it ended the engine twice: killed by signal 9")],
    memory=MemoryStatus(
        own_bytes=50 * GIB, soft_bytes=43 * GIB, hard_bytes=48 * GIB, pressure="hard", refusals=70
    ),
)
PLAIN = WorkerReport(id=WorkerId("old"), boot_id=BootId("b"), version="0.0.9", state="ready")
"""Of a version that says little."""
STRANGE = worker(
    "a-worker-whose-name-is-as-long-as-a-name-can-be-which-is-64-chars"[:64],
    hardware=Hardware(chip=HOSTILE + WIDE, accelerator="[bold]"),
    models=[
        warm(id=ModelId(WIDE * 12)),
        failed(HOSTILE + LONG, id=ModelId(HOSTILE)),
        failed(WIDE * 60, id=ModelId(LONG)),
    ],
    pre_warming=PreWarmingStatus(total=3, completed=1, failed=2, in_progress=[ModelId(HOSTILE)]),
)
ALL = [IDLE, WARMING, OVERLOADED, PRESSED, UNHEALTHY, PLAIN, STRANGE]


def many(number: int) -> list[WorkerReport]:
    """Workers that are each a little busier than the one before."""
    return [
        worker(
            f"mac-{index:02d}",
            active_requests=index,
            engines=[
                EngineStatus(
                    index=0, pid=index, state="running", batches=[ModelBatchStatus(model=DEMO)]
                )
            ],
            memory=MemoryStatus(
                own_bytes=(number - index) * GIB, soft_bytes=90 * GIB, hard_bytes=100 * GIB
            ),
        )
        for index in range(1, number + 1)
    ]


def cluster(*workers: WorkerReport) -> ClusterHealth:
    ready = sum(one.state == "ready" for one in workers)
    return ClusterHealth(
        status="unavailable" if not ready else "ready" if ready == len(workers) else "degraded",
        skills={SkillName("chat"): [DEMO, BIG], SkillName("embed"): [ModelId(HOSTILE)]},
        controllers=[
            ControllerReport(
                id=ControllerId("controller-1"),
                boot_id=BootId("b"),
                version="0.1.0",
                state="ready",
                active_requests=3,
                completed_requests=12,
                failed_requests=1,
                uptime_s=75,
            )
        ],
        workers=list(workers),
    )
