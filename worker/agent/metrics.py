"""The Prometheus metrics of a worker: its report, at each scrape.

Label values come from the cluster or its operator, never from clients.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.messages.engine_status import EngineStatus
from shared.messages.model_status import ModelState, ModelStatus
from shared.messages.worker_report import MemoryPressure, WorkerReport, WorkerState
from shared.refused_messages import RefusedMessages

_Row = tuple[tuple[str, ...], float]


def worker_registry(
    report: Callable[[], WorkerReport], refused: RefusedMessages
) -> CollectorRegistry:
    """Return a registry with the metrics of a worker."""
    registry = CollectorRegistry()
    registry.register(_WorkerCollector(report, refused))
    return registry


class _WorkerCollector(Collector):
    def __init__(self, report: Callable[[], WorkerReport], refused: RefusedMessages) -> None:
        self._report = report
        self._refused = refused

    def describe(self) -> Iterable[Metric]:
        """Name the metrics without a report, which there is only once the worker runs."""
        return []

    def collect(self) -> Iterable[Metric]:
        report = self._report()
        yield from _of_worker(report)
        yield from _of_queue(report)
        yield from _of_memory(report)
        yield from _of_models(report.models)
        yield from _of_engines(report.engines)
        yield from _of_batches(report.engines)
        yield from _of_kv_memory(report.engines)
        yield _counter(
            "refused_messages", "Messages that could not be read, or that their sender may not "
            "send.",
            [((kind,), count) for kind, count in self._refused.counts.items()], ("kind",),
        )  # fmt: skip


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    documentation: str,
    rows: Iterable[_Row],
    labels: Sequence[str] = (),
) -> Metric:
    family = kind(f"mlx_worker_{name}", documentation, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


def _one_of(names: Sequence[str], current: str) -> list[_Row]:
    return [((name,), float(name == current)) for name in names]


def _of_worker(report: WorkerReport) -> Iterable[Metric]:
    hardware = report.hardware
    yield _gauge(
        "info", "1; the labels describe the worker.",
        [((report.id, report.version, hardware.chip, hardware.accelerator), 1.0)],
        ("worker", "version", "chip", "accelerator"),
    )  # fmt: skip
    yield _gauge(
        "state", "1 for the current state of the worker.",
        _one_of(get_args(WorkerState), report.state),
        ("state",),
    )  # fmt: skip
    yield _gauge("uptime_seconds", "Time since the start.", [((), report.uptime_s)])
    yield _gauge(
        "config_version", "Version of the rolled-out cluster.yaml; 0 for the machine's own file.",
        [((), report.config_version)],
    )  # fmt: skip
    yield _gauge(
        "active_requests", "Requests that are being served.", [((), report.active_requests)]
    )
    yield _gauge("slots", "Batch slots of all engines.", [((), report.max_batch_size)])
    yield _gauge("used_slots", "Unfinished choices of its requests.", [((), report.choices)])
    yield _counter(
        "ended_requests", "Requests that ended here: `rejected` because of what they ask.",
        [(("completed",), report.completed_requests), (("rejected",), report.rejected_requests),
         (("failed",), report.failed_requests)],
        ("outcome",),
    )  # fmt: skip
    yield _counter(
        "unexpected_errors", "Exceptions that ended one request, or nothing; the log has each.",
        [((), report.unexpected_errors)],
    )  # fmt: skip
    yield _counter("tokens", "Tokens generated.", [((), report.generated_tokens)])
    yield _gauge("cpu_cores", "Cores that its processes keep busy.", [((), report.cpu_cores)])


def _of_queue(report: WorkerReport) -> Iterable[Metric]:
    levels = report.queue.levels.items()
    yield _gauge(
        "queued_requests", "Requests in the queue.",
        [((name,), level.queued) for name, level in levels], ("priority",),
    )  # fmt: skip
    yield _gauge(
        "queue_limit", "Most requests that the queue holds.", [((), report.max_queue_depth)]
    )
    for name, documentation in (
        ("admitted", "Requests that left the queue for an engine."),
        ("rejected", "Requests that the full queue rejected."),
        ("dropped", "Queued requests that a higher priority displaced, or that waited too long."),
        ("promoted", "Promotions of requests that had waited long."),
    ):
        yield _counter(
            f"queue_{name}", documentation,
            [((priority,), getattr(level, name)) for priority, level in levels], ("priority",),
        )  # fmt: skip


def _of_memory(report: WorkerReport) -> Iterable[Metric]:
    memory = report.memory
    yield _gauge("memory_bytes", "Memory of its processes and MLX.", [((), memory.own_bytes)])
    yield _gauge(
        "available_memory_bytes", "Available memory of the machine.",
        [((), memory.available_bytes)],
    )  # fmt: skip
    yield _gauge(
        "memory_limit_bytes",
        "Above `soft` idle models are unloaded, above `hard` nothing is accepted.",
        [(("soft",), memory.soft_bytes), (("hard",), memory.hard_bytes)], ("limit",),
    )  # fmt: skip
    yield _gauge(
        "memory_pressure", "1 for the current pressure.",
        _one_of(get_args(MemoryPressure), memory.pressure),
        ("pressure",),
    )  # fmt: skip
    yield _counter(
        "evicted_models", "Models that were unloaded for others, or under memory pressure.",
        [((), memory.evictions)],
    )  # fmt: skip
    yield _counter(
        "memory_refusals", "Requests and loads that were rejected under memory pressure.",
        [((), memory.refusals)],
    )  # fmt: skip


def _of_models(models: Sequence[ModelStatus]) -> Iterable[Metric]:
    yield _gauge(
        "model_state", "1 for the current state of a model.",
        [((model.id, name), value) for model in models
         for (name,), value in _one_of(get_args(ModelState), model.state)],
        ("model", "state"),
    )  # fmt: skip
    yield _gauge(
        "model_size_bytes", "Bytes of the model's weights.",
        [((model.id,), model.size_bytes) for model in models], ("model",),
    )  # fmt: skip
    yield _gauge(
        "model_requests", "Requests for a model.",
        [((model.id, state), count) for model in models
         for state, count in (
             ("active", model.active_requests), ("queued", model.queued_requests)
         )],
        ("model", "state"),
    )  # fmt: skip


def _of_engines(engines: Sequence[EngineStatus]) -> Iterable[Metric]:
    def rows(value: Callable[[EngineStatus], float]) -> list[_Row]:
        return [((str(engine.index),), value(engine)) for engine in engines]

    label = ("engine",)
    yield _gauge("engine_up", "1 if the engine runs.", rows(lambda e: e.state == "running"), label)
    yield _counter("engine_restarts", "Restarts of an engine.", rows(lambda e: e.restarts), label)
    yield _gauge("engine_sequences", "Sequences in it.", rows(lambda e: e.active_sequences), label)
    yield _gauge("engine_memory_bytes", "Its memory.", rows(lambda e: e.memory_bytes), label)
    yield _gauge(
        "engine_kv_bytes", "KV caches of running requests.", rows(lambda e: e.kv_bytes), label
    )
    yield _gauge(
        "engine_kv_budget_bytes",
        "Limit of the KV caches.",
        rows(lambda e: e.kv_budget_bytes),
        label,
    )
    yield _counter(
        "engine_preemptions", "Sequences preempted because of that limit.",
        rows(lambda e: e.preemptions), label,
    )  # fmt: skip
    yield _gauge(
        "engine_step_seconds", "Recent duration of a decode step.",
        rows(lambda e: e.step_ms / 1000), label,
    )  # fmt: skip


def _of_batches(engines: Sequence[EngineStatus]) -> Iterable[Metric]:
    batches = [(engine, batch) for engine in engines for batch in engine.batches]
    for name, documentation in (
        ("rows", "Sequences that decode."),
        ("waiting", "Sequences in the engine that do not decode yet."),
        ("limit", "Most rows that decode at once."),
    ):
        yield _gauge(
            f"batch_{name}", documentation,
            [((str(engine.index), batch.model), getattr(batch, name)) for engine, batch in batches],
            ("engine", "model"),
        )  # fmt: skip


def _of_kv_memory(engines: Sequence[EngineStatus]) -> Iterable[Metric]:
    caches = [(str(engine.index), engine.kv_memory) for engine in engines]
    yield _gauge(
        "kv_blocks", "Cached blocks.", [((n,), kv.blocks) for n, kv in caches], ("engine",)
    )
    yield _gauge(
        "kv_bytes", "Size of cached blocks.",
        [row for n, kv in caches
         for row in (((n, "memory"), kv.memory_bytes), ((n, "disk"), kv.disk_bytes))],
        ("engine", "tier"),
    )  # fmt: skip
    yield _gauge(
        "kv_limit_bytes", "Limit of cached blocks.",
        [row for n, kv in caches
         for row in (((n, "memory"), kv.memory_limit_bytes), ((n, "disk"), kv.disk_limit_bytes))],
        ("engine", "tier"),
    )  # fmt: skip
    yield _counter(
        "kv_prompts", "Prompts with (`hit`) and without cached tokens.",
        [row for n, kv in caches for row in (((n, "hit"), kv.hits), ((n, "miss"), kv.misses))],
        ("engine", "result"),
    )  # fmt: skip
    yield _counter(
        "kv_prompt_tokens", "Tokens of all prompts.",
        [((n,), kv.prompt_tokens) for n, kv in caches], ("engine",),
    )  # fmt: skip
    yield _counter(
        "kv_saved_tokens", "The cached tokens among them.",
        [((n,), kv.saved_tokens) for n, kv in caches], ("engine",),
    )  # fmt: skip
    yield _counter(
        "kv_evicted_blocks", "Evicted blocks.",
        [row for n, kv in caches
         for row in (((n, "memory"), kv.evictions), ((n, "disk"), kv.disk_evictions))],
        ("engine", "tier"),
    )  # fmt: skip
    yield _counter(
        "kv_read_blocks", "Blocks read from disk.",
        [((n,), kv.read_blocks) for n, kv in caches], ("engine",),
    )  # fmt: skip
    yield _counter(
        "kv_written_bytes", "Bytes written to disk.",
        [((n,), kv.written_bytes) for n, kv in caches], ("engine",),
    )  # fmt: skip
    yield _counter(
        "kv_broken_files", "Files that were damaged, or could not be read or written.",
        [((n,), kv.broken_files + kv.failed_files) for n, kv in caches], ("engine",),
    )  # fmt: skip
