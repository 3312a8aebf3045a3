"""The table of engines: a row for each batch, so an engine with several models has several rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.fitted_table import Cell, Column, table
from shared.messages.engine_status import EngineStatus, ModelBatchStatus
from shared.messages.worker_report import WorkerReport


@dataclass(frozen=True, slots=True)
class EngineTableRow:
    """A row of the table.

    Attributes:
        batch: None if the engine has no batch.
        first: whether this is the first row of its engine; the others omit the engine's values.
    """

    worker: WorkerReport
    engine: EngineStatus
    batch: ModelBatchStatus | None
    first: bool = True


def engine_rows(workers: Iterable[WorkerReport]) -> list[EngineTableRow]:
    return [
        EngineTableRow(worker, engine, batch, first=number == 0)
        for worker in workers
        for engine in worker.engines
        for number, batch in enumerate(engine.batches or [None])
    ]


def engine_table(rows: Sequence[EngineTableRow], width: int) -> list[Text]:
    """Return a header line, then a line for each row."""
    return table(_COLUMNS, rows, width)


def _of_engine(cell: Callable[[EngineStatus], Text]) -> Callable[[EngineTableRow], Cell]:
    return lambda row: cell(row.engine) if row.first else Text()


def _of_batch(cell: Callable[[ModelBatchStatus], Text]) -> Callable[[EngineTableRow], Cell]:
    return lambda row: cell(row.batch) if row.batch is not None else Text()


def _name(row: EngineTableRow) -> Text:
    name = formatting.plain_text(row.worker.id, "bold" if row.first else "dim")
    return name.append(f"/{row.engine.index}")


def _rows(row: EngineTableRow) -> Text:
    if row.batch is None:
        return Text(str(row.engine.active_sequences))
    full = 0 < row.batch.limit <= row.batch.rows
    return Text(f"{row.batch.rows}/{row.batch.limit}", "yellow" if full else "")


def _step(row: EngineTableRow) -> Text:
    step_ms = row.engine.step_ms if row.batch is None else row.batch.step_ms
    return Text(formatting.short_time(step_ms)) if step_ms else Text(formatting.NO_VALUE, "dim")


def _stability(batch: ModelBatchStatus) -> Text:
    return Text(f"{batch.stability:.0%}", "yellow" if batch.stability < 0.5 else "")


def _last_change(batch: ModelBatchStatus) -> Text:
    if not batch.changes:
        return Text()
    last = batch.changes[-1]
    return formatting.plain_text(
        f"{last.before}→{last.after} {formatting.duration(last.ago_s)} ago at "
        f"{formatting.short_time(last.latency_ms)}: {last.reason}"
    )


def _kv_cache(engine: EngineStatus) -> Text:
    return Text(formatting.share_of_size(engine.kv_bytes, engine.kv_budget_bytes))


def _reused(engine: EngineStatus) -> Text:
    """Return the share of prompt tokens that came from KV memory."""
    memory = engine.kv_memory
    if not memory.prompt_tokens:
        return Text(formatting.NO_VALUE, "dim")
    return Text(f"{memory.saved_tokens / memory.prompt_tokens:.0%}")


def _cached(engine: EngineStatus) -> Text:
    return Text(formatting.size(engine.kv_memory.memory_bytes))


def _on_disk(engine: EngineStatus) -> Text:
    memory = engine.kv_memory
    return Text(formatting.size(memory.disk_bytes), "yellow" if memory.problem else "")


def _preemptions(engine: EngineStatus) -> Text:
    return _highlighted(engine.preemptions)


def _restarts(engine: EngineStatus) -> Text:
    return _highlighted(engine.restarts)


def _highlighted(number: int) -> Text:
    return Text(str(number), "yellow" if number else "dim")


_COLUMNS: tuple[Column[EngineTableRow], ...] = (
    Column("engine", _name, min_width=10, keep_end=True),
    Column("state", _of_engine(lambda engine: formatting.state_text(engine.state))),
    Column("pid", _of_engine(lambda engine: Text(str(engine.pid or ""))), rank=6, right=True),
    Column(
        "model", _of_batch(lambda batch: formatting.plain_text(batch.model)),
        rank=1, min_width=8, keep_end=True,
    ),
    Column("rows", _rows, right=True),
    Column("waiting", _of_batch(lambda batch: _highlighted(batch.waiting)), rank=7, right=True),
    Column("step", _step, rank=1, right=True),
    Column("stable", _of_batch(_stability), rank=3, right=True),
    Column("kv cache", _of_engine(_kv_cache), rank=2, right=True),
    Column("reused", _of_engine(_reused), rank=11, right=True),
    Column("cached", _of_engine(_cached), rank=12, right=True),
    Column("on disk", _of_engine(_on_disk), rank=13, right=True),
    Column("preempted", _of_engine(_preemptions), rank=4, right=True),
    Column("restarts", _of_engine(_restarts), rank=5, right=True),
    Column(
        "memory", _of_engine(lambda engine: Text(formatting.size(engine.memory_bytes))),
        rank=8, right=True,
    ),
    Column(
        "cores", _of_engine(lambda engine: Text(f"{engine.cpu_cores:.1f}")), rank=9, right=True
    ),
    Column("limit changed", _of_batch(_last_change), rank=10, min_width=20),
)  # fmt: skip
