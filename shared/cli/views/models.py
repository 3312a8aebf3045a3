"""Models on workers, a line for each pair."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from shared.cli.views import figures
from shared.cli.views.fitted_table import Cell, Column, table, wrapped
from shared.cli.views.gauges import progress_bar
from shared.ids import WorkerId
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import WorkerReport

_MOST_BAR = 40
_LEAST_NOTE = 16


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model on one worker."""

    worker: WorkerId
    model: ModelStatus

    @property
    def calm(self) -> bool:
        """Whether it is warm or not asked for, and nobody waits."""
        waits = self.model.active_requests or self.model.queued_requests
        return self.model.state in ("warm", "available") and not waits


def model_rows(workers: Iterable[WorkerReport]) -> list[ModelRow]:
    return [ModelRow(worker.id, model) for worker in workers for model in worker.models]


def model_table(rows: Sequence[ModelRow], width: int, *, with_errors: bool = False) -> list[Text]:
    """A line of titles, then one for each row; errors, if at all, as far as there is room."""
    last = _PROGRESS_OR_ERROR if with_errors else _PROGRESS
    return table((*_COLUMNS, last), rows, width)


def error_lines(rows: Iterable[ModelRow], width: int) -> list[Text]:
    """Why models failed or were not loaded the last time, in full."""
    return [
        line
        for row in rows
        if row.model.error
        for line in _said(row, figures.words(row.model.error, "red"), width)
    ]


def warning_lines(rows: Iterable[ModelRow], width: int) -> list[Text]:
    """What was assumed or left out when models were loaded, in full."""
    return [
        line
        for row in rows
        for warning in row.model.warnings
        for line in _said(row, figures.words(warning, "yellow"), width)
    ]


def batching_lines(rows: Iterable[ModelRow], width: int) -> list[Text]:
    """Of which models rows decode one at a time, and why: that is slower than it could be."""
    return [
        line
        for row in rows
        if row.model.batching == "alone"
        for line in _said(
            row,
            Text.assemble(
                "batching: rows alone: ", figures.words(row.model.batching_reason or "", "yellow")
            ),
            width,
        )
    ]


def _said(row: ModelRow, words: Text, width: int) -> list[Text]:
    of = figures.words(f"{row.model.id} on {row.worker}:")
    return wrapped(Text.assemble(of, " ", words), width, hanging=2)


def doing(model: ModelStatus) -> str:
    """What the worker does with it: its state, while it is loading the phase."""
    return model.phase or model.state if model.state == "loading" else model.state


def _of(cell: Callable[[ModelStatus], Cell]) -> Callable[[ModelRow], Cell]:
    return lambda row: cell(row.model)


def _state(model: ModelStatus) -> Text:
    return figures.words(doing(model), figures.style_of(model.state))


def _priority(model: ModelStatus) -> Text:
    return Text(f"{model.priority}{' pinned' if model.pinned else ''}")


def _size(model: ModelStatus) -> Text:
    return Text(figures.size(model.size_bytes)) if model.size_bytes else Text()


def _idle(model: ModelStatus) -> Text:
    return Text(figures.duration(model.idle_s)) if model.idle_s is not None else Text()


def _waiting(number: int) -> Text:
    return Text(str(number), "" if number else "dim")


def _progress(model: ModelStatus) -> Cell:
    if model.state != "loading" or model.progress is None:
        return Text()
    return partial(_bar, model.progress)


def _progress_or_error(model: ModelStatus) -> Cell:
    return figures.words(model.error, "red") if model.error else _progress(model)


def _bar(share: float, width: int) -> Text:
    figure = f" {share:4.0%}"
    return progress_bar(share, width - len(figure)).append(figure)


_COLUMNS: tuple[Column[ModelRow], ...] = (
    Column("model", lambda row: figures.words(row.model.id, "bold"), least=10, keep_end=True),
    Column("worker", lambda row: figures.words(row.worker), least=8, keep_end=True),
    Column("state", _of(_state)),
    Column("size", _of(_size), rank=3, right=True),
    Column("priority", _of(_priority), rank=4),
    Column("idle", _of(_idle), rank=5, right=True),
    Column("active", _of(lambda model: _waiting(model.active_requests)), rank=1, right=True),
    Column("queued", _of(lambda model: _waiting(model.queued_requests)), rank=2, right=True),
)
_PROGRESS = Column("", _of(_progress), least=_LEAST_NOTE, most=_MOST_BAR)
_PROGRESS_OR_ERROR = Column("", _of(_progress_or_error), least=_LEAST_NOTE, most=_MOST_BAR)
