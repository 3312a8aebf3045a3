"""The table of workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.fitted_table import Cell, Column, table
from shared.cli.views.gauges import memory_bar, sparkline
from shared.ids import WorkerId
from shared.messages.base import PRIORITIES
from shared.messages.worker_report import QueuePriorityStatus, WorkerReport

Sort = Literal["name", "load", "memory"]
SORTS: tuple[Sort, ...] = ("name", "load", "memory")

TokenRates = Mapping[WorkerId, Sequence[float | None]]
"""Tokens per second over the last minute, oldest first; None: unknown."""

_MIN_BAR = 6
_MAX_BAR = 24
_MIN_SPARKLINE = 8
_MAX_SPARKLINE = 60


@dataclass(frozen=True, slots=True)
class _Row:
    worker: WorkerReport
    rates: Sequence[float | None]


def sorted_workers(workers: Sequence[WorkerReport], sort: Sort) -> list[WorkerReport]:
    """Return the workers sorted by name, or by requests per slot or used memory, highest first."""
    by_name = sorted(workers, key=lambda worker: worker.id)
    match sort:
        case "name":
            return by_name
        case "load":
            return sorted(by_name, key=_load, reverse=True)
        case "memory":
            return sorted(by_name, key=_memory_share, reverse=True)


def worker_table(
    workers: Sequence[WorkerReport], width: int, token_rates: TokenRates | None = None
) -> list[Text]:
    """Return a header line, then a line for each worker."""
    rates = token_rates or {}
    rows = [_Row(worker, rates.get(worker.id, ())) for worker in workers]
    return table(_COLUMNS, rows, width)


def own_bytes(worker: WorkerReport) -> int:
    """Return the used memory; workers without memory limits report it in another field."""
    return worker.memory.own_bytes or worker.memory_bytes


def engine_restarts(worker: WorkerReport) -> int:
    """Return the restarts of all engines of a worker."""
    return sum(engine.restarts for engine in worker.engines)


def _load(worker: WorkerReport) -> float:
    return worker.used_slots / max(1, worker.max_batch_size)


def _memory_share(worker: WorkerReport) -> float:
    limit = worker.memory.hard_bytes or worker.hardware.memory_bytes
    return own_bytes(worker) / limit if limit else 0.0


def _config(worker: WorkerReport) -> Text:
    """Return the version of cluster.yaml; empty for the machine's own file."""
    if worker.config_problem is not None:
        return Text(f"{worker.config_version} ✗", "red")
    return Text(str(worker.config_version) if worker.config_version else "")


def _state(worker: WorkerReport) -> Text:
    """Return the state with the progress of pre-warming and failed models: warming 1/3 ✗1."""
    warm = worker.pre_warming
    text = formatting.state_text(worker.state)
    if warm.completed < warm.total:
        text.append(f" {warm.completed}/{warm.total}", "yellow")
    if warm.failed:
        text.append(f" ✗{warm.failed}", "red")
    return text


def _device(worker: WorkerReport) -> Text:
    hardware = worker.hardware
    return formatting.plain_text(
        f"{hardware.chip} ({hardware.accelerator})" if hardware.chip else ""
    )


def _active(worker: WorkerReport) -> Text:
    full = 0 < worker.max_batch_size <= worker.active_requests
    return Text(f"{worker.active_requests}/{worker.max_batch_size}", "yellow" if full else "")


def _queue(worker: WorkerReport) -> Text:
    """Return the queued requests of high, medium and low priority."""
    full = 0 < worker.max_queue_depth <= worker.queued_requests
    style = "red" if full else "yellow" if worker.queued_requests else ""
    levels = worker.queue.levels
    if not levels:
        return Text(str(worker.queued_requests), style)
    queued = (levels.get(level, QueuePriorityStatus()).queued for level in PRIORITIES)
    return Text("/".join(map(str, queued)), style)


def _wait(worker: WorkerReport) -> Text:
    """Return the median and the 95th percentile of the priority that waits longest."""
    admitted = [level for level in worker.queue.levels.values() if level.admitted]
    if not admitted:
        return Text(formatting.NO_VALUE, "dim")
    longest = max(admitted, key=lambda level: level.wait_p95_ms)
    p50, p95 = (
        formatting.short_time(longest.wait_p50_ms),
        formatting.short_time(longest.wait_p95_ms),
    )
    return Text(f"{p50}/{p95}")


def _sparkline(row: _Row) -> Cell:
    return partial(sparkline, row.rates) if row.rates else Text()


def _memory(worker: WorkerReport) -> Text:
    memory = worker.memory
    text = Text(formatting.share_of_size(own_bytes(worker), memory.hard_bytes))
    text.stylize(formatting.style_of(memory.pressure))
    return text


def _memory_bar(worker: WorkerReport) -> Cell:
    return partial(memory_bar, worker.memory) if worker.memory.hard_bytes else Text()


def _restarts(worker: WorkerReport) -> Text:
    return Text(str(engine_restarts(worker)), "yellow" if engine_restarts(worker) else "dim")


def _cores(worker: WorkerReport) -> Text:
    cores = worker.hardware.cores
    return Text(f"{worker.cpu_cores:.1f}/{cores}" if cores else f"{worker.cpu_cores:.1f}")


def _balance(worker: WorkerReport) -> Text:
    return Text(f"{worker.load_balance:.2f}" if len(worker.engines) > 1 else "")


def _of(cell: Callable[[WorkerReport], Cell]) -> Callable[[_Row], Cell]:
    return lambda row: cell(row.worker)


_COLUMNS: tuple[Column[_Row], ...] = (
    Column(
        "worker",
        lambda row: formatting.plain_text(row.worker.id, "bold"),
        min_width=8,
        keep_end=True,
    ),
    Column("state", _of(_state)),
    Column("device", _of(_device), rank=10, min_width=10),
    Column("active", _of(_active), rank=1, right=True),
    Column("queue", _of(_queue), rank=1, right=True),
    Column("wait", _of(_wait), rank=4, right=True),
    Column("tok/s", lambda row: Text(formatting.rate(row.worker.tokens_per_s)), rank=1, right=True),
    Column("last min", _sparkline, rank=5, min_width=_MIN_SPARKLINE, max_width=_MAX_SPARKLINE),
    Column("memory", _of(_memory), rank=2, right=True),
    Column("limits", _of(_memory_bar), rank=3, min_width=_MIN_BAR, max_width=_MAX_BAR),
    Column("cores", _of(_cores), rank=6, right=True),
    Column("restarts", _of(_restarts), rank=7, right=True),
    Column("balance", _of(_balance), rank=9, right=True),
    Column("config", _of(_config), rank=8, right=True),
    Column("up", lambda row: Text(formatting.duration(row.worker.uptime_s)), rank=8, right=True),
)
