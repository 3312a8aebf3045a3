"""Workers, a line for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rich.text import Text

from shared.cli.views import figures
from shared.cli.views.fitted_table import Cell, Column, table
from shared.cli.views.gauges import memory_bar, sparkline
from shared.ids import WorkerId
from shared.messages.priorities import PRIORITIES
from shared.messages.worker_report import LevelStatus, WorkerReport

Sort = Literal["name", "load", "memory"]
SORTS: tuple[Sort, ...] = ("name", "load", "memory")

Speeds = Mapping[WorkerId, Sequence[float | None]]
"""Tokens in a second over the last minute, oldest first; None where nobody asked."""

_LEAST_BAR = 6
_MOST_BAR = 24
_LEAST_SPARKLINE = 8
_MOST_SPARKLINE = 60


@dataclass(frozen=True, slots=True)
class _Row:
    worker: WorkerReport
    speeds: Sequence[float | None]


def in_order(workers: Sequence[WorkerReport], sort: Sort) -> list[WorkerReport]:
    """By name; or first those with the most requests for their slots, or the fullest memory."""
    by_name = sorted(workers, key=lambda worker: worker.id)
    match sort:
        case "name":
            return by_name
        case "load":
            return sorted(by_name, key=_load, reverse=True)
        case "memory":
            return sorted(by_name, key=_memory_share, reverse=True)


def worker_table(
    workers: Sequence[WorkerReport], width: int, speeds: Speeds | None = None
) -> list[Text]:
    """A line of titles, then one for each worker."""
    known = speeds or {}
    rows = [_Row(worker, known.get(worker.id, ())) for worker in workers]
    return table(_COLUMNS, rows, width)


def own_bytes(worker: WorkerReport) -> int:
    """What it holds; a worker that knows no limits says it in another field."""
    return worker.memory.own_bytes or worker.memory_bytes


def restarts_of(worker: WorkerReport) -> int:
    """Of all its engines."""
    return sum(engine.restarts for engine in worker.engines)


def _load(worker: WorkerReport) -> float:
    return worker.places_taken / max(1, worker.max_batch_size)


def _memory_share(worker: WorkerReport) -> float:
    limit = worker.memory.hard_bytes or worker.hardware.memory_bytes
    return own_bytes(worker) / limit if limit else 0.0


def _config(worker: WorkerReport) -> Text:
    """The version of cluster.yaml; nothing for the machine's own file."""
    if worker.config_problem is not None:
        return Text(f"{worker.config_version} ✗", "red")
    return Text(str(worker.config_version) if worker.config_version else "")


def _state(worker: WorkerReport) -> Text:
    """With how far pre-warming is while it goes on, and how many models failed: warming 1/3 ✗1."""
    warm = worker.pre_warming
    text = figures.state(worker.state)
    if warm.completed < warm.total:
        text.append(f" {warm.completed}/{warm.total}", "yellow")
    if warm.failed:
        text.append(f" ✗{warm.failed}", "red")
    return text


def _device(worker: WorkerReport) -> Text:
    hardware = worker.hardware
    return figures.words(f"{hardware.chip} ({hardware.accelerator})" if hardware.chip else "")


def _active(worker: WorkerReport) -> Text:
    full = 0 < worker.max_batch_size <= worker.active_requests
    return Text(f"{worker.active_requests}/{worker.max_batch_size}", "yellow" if full else "")


def _queue(worker: WorkerReport) -> Text:
    """High, medium and low priority."""
    full = 0 < worker.max_queue_depth <= worker.queued_requests
    style = "red" if full else "yellow" if worker.queued_requests else ""
    levels = worker.queue.levels
    if not levels:
        return Text(str(worker.queued_requests), style)
    queued = (levels.get(level, LevelStatus()).queued for level in PRIORITIES)
    return Text("/".join(map(str, queued)), style)


def _wait(worker: WorkerReport) -> Text:
    """The median and the 95th percentile, of the priority that waits longest."""
    waited = [level for level in worker.queue.levels.values() if level.admitted]
    if not waited:
        return Text(figures.NOTHING, "dim")
    longest = max(waited, key=lambda level: level.wait_p95_ms)
    p50, p95 = figures.short_time(longest.wait_p50_ms), figures.short_time(longest.wait_p95_ms)
    return Text(f"{p50}/{p95}")


def _sparkline(row: _Row) -> Cell:
    return partial(sparkline, row.speeds) if row.speeds else Text()


def _memory(worker: WorkerReport) -> Text:
    memory = worker.memory
    text = Text(figures.share_of_size(own_bytes(worker), memory.hard_bytes))
    text.stylize(figures.style_of(memory.pressure))
    return text


def _memory_bar(worker: WorkerReport) -> Cell:
    return partial(memory_bar, worker.memory) if worker.memory.hard_bytes else Text()


def _restarts(worker: WorkerReport) -> Text:
    return Text(str(restarts_of(worker)), "yellow" if restarts_of(worker) else "dim")


def _cores(worker: WorkerReport) -> Text:
    cores = worker.hardware.cores
    return Text(f"{worker.cpu_cores:.1f}/{cores}" if cores else f"{worker.cpu_cores:.1f}")


def _balance(worker: WorkerReport) -> Text:
    return Text(f"{worker.load_balance:.2f}" if len(worker.engines) > 1 else "")


def _of(cell: Callable[[WorkerReport], Cell]) -> Callable[[_Row], Cell]:
    return lambda row: cell(row.worker)


_COLUMNS: tuple[Column[_Row], ...] = (
    Column("worker", lambda row: figures.words(row.worker.id, "bold"), least=8, keep_end=True),
    Column("state", _of(_state)),
    Column("device", _of(_device), rank=10, least=10),
    Column("active", _of(_active), rank=1, right=True),
    Column("queue", _of(_queue), rank=1, right=True),
    Column("wait", _of(_wait), rank=4, right=True),
    Column("tok/s", lambda row: Text(figures.rate(row.worker.tokens_per_s)), rank=1, right=True),
    Column("last min", _sparkline, rank=5, least=_LEAST_SPARKLINE, most=_MOST_SPARKLINE),
    Column("memory", _of(_memory), rank=2, right=True),
    Column("limits", _of(_memory_bar), rank=3, least=_LEAST_BAR, most=_MOST_BAR),
    Column("cores", _of(_cores), rank=6, right=True),
    Column("restarts", _of(_restarts), rank=7, right=True),
    Column("balance", _of(_balance), rank=9, right=True),
    Column("config", _of(_config), rank=8, right=True),
    Column("up", lambda row: Text(figures.duration(row.worker.uptime_s)), rank=8, right=True),
)
