"""The table of models: a row for each model on each worker."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.fitted_table import Cell, Column, table, wrap
from shared.cli.views.gauges import progress_bar
from shared.ids import WorkerId
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import WorkerReport

_MAX_BAR = 40
_MIN_NOTE = 16


@dataclass(frozen=True, slots=True)
class ModelTableRow:
    """A model on a worker."""

    worker: WorkerId
    model: ModelStatus

    @property
    def is_quiet(self) -> bool:
        """Whether the model is warm or not loaded, and has no requests."""
        busy = self.model.active_requests or self.model.queued_requests
        return self.model.state in ("warm", "available") and not busy


def model_rows(workers: Iterable[WorkerReport]) -> list[ModelTableRow]:
    return [ModelTableRow(worker.id, model) for worker in workers for model in worker.models]


def model_table(
    rows: Sequence[ModelTableRow], width: int, *, with_errors: bool = False
) -> list[Text]:
    """Return a header line, then a line for each row; errors are shortened to the width."""
    last = _PROGRESS_OR_ERROR if with_errors else _PROGRESS
    return table((*_COLUMNS, last), rows, width)


def error_lines(rows: Iterable[ModelTableRow], width: int) -> list[Text]:
    """Return the errors of models that failed or could not be loaded, in full."""
    return [
        line
        for row in rows
        if row.model.error
        for line in _note(row, formatting.plain_text(row.model.error, "red"), width)
    ]


def warning_lines(rows: Iterable[ModelTableRow], width: int) -> list[Text]:
    """Return the warnings from loading models, in full."""
    return [
        line
        for row in rows
        for warning in row.model.warnings
        for line in _note(row, formatting.plain_text(warning, "yellow"), width)
    ]


def batching_lines(rows: Iterable[ModelTableRow], width: int) -> list[Text]:
    """Return the models whose rows decode one at a time, which is slower, with the reason."""
    return [
        line
        for row in rows
        if row.model.batching == "alone"
        for line in _note(
            row,
            Text.assemble(
                "batching: rows alone: ",
                formatting.plain_text(row.model.batching_reason or "", "yellow"),
            ),
            width,
        )
    ]


def _note(row: ModelTableRow, text: Text, width: int) -> list[Text]:
    subject = formatting.plain_text(f"{row.model.id} on {row.worker}:")
    return wrap(Text.assemble(subject, " ", text), width, hanging=2)


def model_activity(model: ModelStatus) -> str:
    """Return the state of the model; while the model is loading the phase."""
    return model.phase or model.state if model.state == "loading" else model.state


def _of(cell: Callable[[ModelStatus], Cell]) -> Callable[[ModelTableRow], Cell]:
    return lambda row: cell(row.model)


def _state(model: ModelStatus) -> Text:
    return formatting.plain_text(model_activity(model), formatting.style_of(model.state))


def _priority(model: ModelStatus) -> Text:
    return Text(f"{model.priority}{' pinned' if model.pinned else ''}")


def _size(model: ModelStatus) -> Text:
    return Text(formatting.size(model.size_bytes)) if model.size_bytes else Text()


def _idle(model: ModelStatus) -> Text:
    return Text(formatting.duration(model.idle_s)) if model.idle_s is not None else Text()


def _highlighted(number: int) -> Text:
    return Text(str(number), "" if number else "dim")


def _progress(model: ModelStatus) -> Cell:
    if model.state != "loading" or model.progress is None:
        return Text()
    return partial(_bar, model.progress)


def _progress_or_error(model: ModelStatus) -> Cell:
    return formatting.plain_text(model.error, "red") if model.error else _progress(model)


def _bar(fraction: float, width: int) -> Text:
    percent = f" {fraction:4.0%}"
    return progress_bar(fraction, width - len(percent)).append(percent)


_COLUMNS: tuple[Column[ModelTableRow], ...] = (
    Column(
        "model",
        lambda row: formatting.plain_text(row.model.id, "bold"),
        min_width=10,
        keep_end=True,
    ),
    Column("worker", lambda row: formatting.plain_text(row.worker), min_width=8, keep_end=True),
    Column("state", _of(_state)),
    Column("size", _of(_size), rank=3, right=True),
    Column("priority", _of(_priority), rank=4),
    Column("idle", _of(_idle), rank=5, right=True),
    Column("active", _of(lambda model: _highlighted(model.active_requests)), rank=1, right=True),
    Column("queued", _of(lambda model: _highlighted(model.queued_requests)), rank=2, right=True),
)
_PROGRESS = Column("", _of(_progress), min_width=_MIN_NOTE, max_width=_MAX_BAR)
_PROGRESS_OR_ERROR = Column("", _of(_progress_or_error), min_width=_MIN_NOTE, max_width=_MAX_BAR)
