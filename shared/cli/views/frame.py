"""One frame of `cluster top`, shortened to the height of the screen."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.engines import engine_rows, engine_table
from shared.cli.views.fitted_table import flow, truncate, wrap
from shared.cli.views.history import ZERO_COUNTS, OverloadCounts, rejection_counts
from shared.cli.views.models import model_rows, model_table
from shared.cli.views.workers import Sort, TokenRates, sorted_workers, worker_table
from shared.messages.health import ClusterHealth
from shared.messages.worker_report import WorkerReport

_STALE = "bright_black"
_TITLE_LINES = 2
"""An empty line and the header, above the rows of each section."""


@dataclass(frozen=True, slots=True)
class TopFrameData:
    """The content of a frame.

    Attributes:
        new_counts: the increase since the previous update.
        error: why the last update failed; None if `health` is current.
        age_s: age of `health`.
        live: whether more frames follow; the keys are explained then.
    """

    health: ClusterHealth
    token_rates: TokenRates
    new_counts: OverloadCounts = ZERO_COUNTS
    sort: Sort = "name"
    paused: bool = False
    error: str | None = None
    age_s: float = 0.0
    live: bool = True


@dataclass(frozen=True, slots=True)
class _Section:
    """A table of the frame.

    Attributes:
        weight: its share of the lines on a screen that is too small for all rows.
        is_quiet: whether a row comes last on such a screen.
    """

    noun: str
    rows: Sequence[Any]
    render: Callable[[Sequence[Any], int], list[Text]]
    weight: int = 1
    is_quiet: Callable[[Any], bool] = lambda _: False


def frame(data: TopFrameData, width: int, height: int | None = None) -> list[Text]:
    """Return the lines of a frame: at most `height` lines of at most `width` columns."""
    above = _summary(data.health, width)
    below = [Text(), *_counters(data, width)]
    if data.live:
        below.append(truncate(_key_line(data), width))
    if data.error is not None:
        above.insert(0, truncate(_error_line(data), width))
    available = None if height is None else height - len(above) - len(below)
    lines = [*above, *_sections(data, width, available), *below]
    if data.error is not None:
        lines[1:] = [Text(line.plain, style=_STALE) for line in lines[1:]]
    return lines[:height]


def _summary(health: ClusterHealth, width: int) -> list[Text]:
    workers = health.workers
    states = Counter(worker.state for worker in workers)
    ready = states.pop("ready", 0)
    summary = Text(f"{ready}/{formatting.count(len(workers), 'worker')} ready")
    for state, number in sorted(states.items()):
        summary.append(", ").append(f"{number} {state}", formatting.style_of(state))
    active = sum(worker.active_requests for worker in workers)
    queued = sum(worker.queued_requests for worker in workers)
    token_rate = sum(worker.tokens_per_s for worker in workers)
    pieces = [
        Text.assemble("cluster ", formatting.state_text(health.status)),
        summary,
        Text(formatting.count(len(health.controllers), "controller")),
        Text(f"{active} active, {queued} queued"),
        Text(f"{formatting.rate(token_rate)} tok/s", "bold"),
    ]
    return flow(pieces, width)


def _sections(data: TopFrameData, width: int, available: int | None) -> list[Text]:
    workers = sorted_workers(data.health.workers, data.sort)
    if not workers:
        return [Text(), *wrap(Text("No worker has joined. Start one: worker --nats URL"), width)]

    def render_workers(rows: Sequence[WorkerReport], width: int) -> list[Text]:
        return worker_table(rows, width, data.token_rates)

    def render_models(rows: Sequence[Any], width: int) -> list[Text]:
        return model_table(rows, width, with_errors=True)

    sections = [
        _Section("worker", workers, render_workers, weight=3),
        _Section("model", model_rows(workers), render_models, is_quiet=lambda row: row.is_quiet),
        _Section("engine row", engine_rows(workers), engine_table),
    ]
    sections = [section for section in sections if section.rows]
    lines_needed = sum(len(section.rows) + _TITLE_LINES for section in sections)
    if available is None or lines_needed <= available:
        return [
            line for section in sections for line in (Text(), *section.render(section.rows, width))
        ]
    return _shortened(sections, width, available)


def _shortened(sections: list[_Section], width: int, available: int) -> list[Text]:
    """Return as many rows of each section as fit, and a line with the number of hidden rows."""
    totals = [len(section.rows) for section in sections]
    available -= len(_hidden_line(sections, totals, width))
    shown = allocate_rows(totals, [section.weight for section in sections], available)
    lines: list[Text] = []
    for section, number in zip(sections, shown, strict=True):
        if number:
            rows = sorted(section.rows, key=section.is_quiet)[:number]
            lines += [Text(), *section.render(rows, width)]
    hidden = [total - number for total, number in zip(totals, shown, strict=True)]
    return lines + _hidden_line(sections, hidden, width)


def allocate_rows(totals: Sequence[int], weights: Sequence[int], available: int) -> list[int]:
    """Return how many rows each section gets of `available` lines, in proportion to its weight.

    A section with rows takes `_TITLE_LINES` more lines. If there are too few lines, the last
    sections get no rows.
    """
    rows = [0] * len(totals)
    while True:
        incomplete = [i for i, total in enumerate(totals) if rows[i] < total]
        fitting = [i for i in incomplete if available >= (1 if rows[i] else 1 + _TITLE_LINES)]
        if not fitting:
            return rows
        least = min(fitting, key=lambda i: rows[i] / weights[i])
        available -= 1 if rows[least] else 1 + _TITLE_LINES
        rows[least] += 1


def _hidden_line(sections: Sequence[_Section], hidden: Sequence[int], width: int) -> list[Text]:
    counts = [
        formatting.count(number, f"more {section.noun}")
        for section, number in zip(sections, hidden, strict=True)
        if number
    ]
    text = f"… {', '.join(counts)}; enlarge the window or use cluster status"
    return wrap(Text(text, "yellow"), width, hanging=2)


def _counters(data: TopFrameData, width: int) -> list[Text]:
    """Return the counts since the workers started, with the increase of the last interval."""
    total, new = rejection_counts(data.health.workers), data.new_counts

    def counter(name: str, number: int, increase: int) -> Text:
        text = Text(f"{name} {number}", "" if number else "dim")
        return text.append(f" (+{increase})", "bold red") if increase else text

    pieces = [
        Text("since start", "dim"),
        counter("rejected", total.rejected, new.rejected),
        counter("dropped", total.dropped, new.dropped),
        counter("promoted", total.promoted, new.promoted),
        counter("evicted", total.evicted, new.evicted),
        counter("no memory", total.refused, new.refused),
    ]
    return flow(pieces, width, gap="  ")


def _key_line(data: TopFrameData) -> Text:
    pause = Text("p resume   PAUSED", "bold yellow") if data.paused else Text("p pause")
    legend = "   queue: high/medium/low, wait: p50/p95"
    return Text.assemble("q quit   ", pause, f"   s sort: {data.sort}", legend, style="dim")


def _error_line(data: TopFrameData) -> Text:
    text = Text(f"no answer for {formatting.duration(data.age_s)}: ", "bold red")
    return text.append_text(formatting.plain_text(data.error or "", "red"))
