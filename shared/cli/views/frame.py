"""One frame of `cluster top`: everything that is known, folded to the height of the screen."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from shared.cli.views import figures
from shared.cli.views.engines import engine_rows, engine_table
from shared.cli.views.fitted_table import flowed, shortened, wrapped
from shared.cli.views.history import NO_REFUSALS, RejectionCounts, rejection_counts
from shared.cli.views.models import model_rows, model_table
from shared.cli.views.workers import Sort, Speeds, in_order, worker_table
from shared.messages.health import ClusterHealth
from shared.messages.worker_report import WorkerReport

_STALE = "bright_black"
_TITLE_LINES = 2
"""An empty line and the titles, above the rows of each section."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one frame shows.

    Attributes:
        news: what came since the look before.
        problem: why the cluster gave no newer answer; None where this is its newest.
        age_s: how old the answer is.
        live: more frames follow: the keys are explained.
    """

    health: ClusterHealth
    speeds: Speeds
    news: RejectionCounts = NO_REFUSALS
    sort: Sort = "name"
    paused: bool = False
    problem: str | None = None
    age_s: float = 0.0
    live: bool = True


@dataclass(frozen=True, slots=True)
class _Section:
    """A table.

    Attributes:
        weight: its part of a screen that is too low for all rows.
        calm: rows that come last there.
    """

    noun: str
    rows: Sequence[Any]
    draw: Callable[[Sequence[Any], int], list[Text]]
    weight: int = 1
    calm: Callable[[Any], bool] = lambda _: False


def frame(look: Look, width: int, height: int | None = None) -> list[Text]:
    """The lines of a frame, none longer than `width`, no more than `height`."""
    above = _summary(look.health, width)
    below = [Text(), *_refusals(look, width)]
    if look.live:
        below.append(shortened(_keys(look), width))
    if look.problem is not None:
        above.insert(0, shortened(_problem(look), width))
    room = None if height is None else height - len(above) - len(below)
    lines = [*above, *_sections(look, width, room), *below]
    if look.problem is not None:
        lines[1:] = [Text(line.plain, style=_STALE) for line in lines[1:]]
    return lines[:height]


def _summary(health: ClusterHealth, width: int) -> list[Text]:
    workers = health.workers
    states = Counter(worker.state for worker in workers)
    ready = states.pop("ready", 0)
    who = Text(f"{ready}/{figures.count(len(workers), 'worker')} ready")
    for state, number in sorted(states.items()):
        who.append(", ").append(f"{number} {state}", figures.style_of(state))
    active = sum(worker.active_requests for worker in workers)
    queued = sum(worker.queued_requests for worker in workers)
    speed = sum(worker.tokens_per_s for worker in workers)
    pieces = [
        Text.assemble("cluster ", figures.state(health.status)),
        who,
        Text(figures.count(len(health.controllers), "controller")),
        Text(f"{active} active, {queued} queued"),
        Text(f"{figures.rate(speed)} tok/s", "bold"),
    ]
    return flowed(pieces, width)


def _sections(look: Look, width: int, room: int | None) -> list[Text]:
    workers = in_order(look.health.workers, look.sort)
    if not workers:
        return [Text(), *wrapped(Text("No worker has joined. Start one: worker --nats URL"), width)]

    def draw_workers(rows: Sequence[WorkerReport], width: int) -> list[Text]:
        return worker_table(rows, width, look.speeds)

    def draw_models(rows: Sequence[Any], width: int) -> list[Text]:
        return model_table(rows, width, with_errors=True)

    sections = [
        _Section("worker", workers, draw_workers, weight=3),
        _Section("model", model_rows(workers), draw_models, calm=lambda row: row.calm),
        _Section("engine row", engine_rows(workers), engine_table),
    ]
    sections = [section for section in sections if section.rows]
    if room is None or sum(len(section.rows) + _TITLE_LINES for section in sections) <= room:
        return [
            line for section in sections for line in (Text(), *section.draw(section.rows, width))
        ]
    return _folded(sections, width, room)


def _folded(sections: list[_Section], width: int, room: int) -> list[Text]:
    """As many rows of each section as there is room for, and how many are missing."""
    totals = [len(section.rows) for section in sections]
    room -= len(_missing(sections, totals, width))
    shown = allotted(totals, [section.weight for section in sections], room)
    lines: list[Text] = []
    for section, number in zip(sections, shown, strict=True):
        if number:
            rows = sorted(section.rows, key=section.calm)[:number]
            lines += [Text(), *section.draw(rows, width)]
    hidden = [total - number for total, number in zip(totals, shown, strict=True)]
    return lines + _missing(sections, hidden, width)


def allotted(needs: Sequence[int], weights: Sequence[int], room: int) -> list[int]:
    """How many rows each section gets of `room` lines; the last ones get none where it is too
    small for all. Each section with rows costs two more lines."""
    given = [0] * len(needs)
    while True:
        wanting = [i for i, need in enumerate(needs) if given[i] < need]
        fits = [i for i in wanting if room >= (1 if given[i] else 1 + _TITLE_LINES)]
        if not fits:
            return given
        least = min(fits, key=lambda i: given[i] / weights[i])
        room -= 1 if given[least] else 1 + _TITLE_LINES
        given[least] += 1


def _missing(sections: Sequence[_Section], hidden: Sequence[int], width: int) -> list[Text]:
    named = [
        figures.count(number, f"more {section.noun}")
        for section, number in zip(sections, hidden, strict=True)
        if number
    ]
    text = f"… {', '.join(named)}; enlarge the window or use cluster status"
    return wrapped(Text(text, "yellow"), width, hanging=2)


def _refusals(look: Look, width: int) -> list[Text]:
    """Counts since the workers started, with what the last interval added."""
    total, news = rejection_counts(look.health.workers), look.news

    def figure(name: str, number: int, new: int) -> Text:
        text = Text(f"{name} {number}", "" if number else "dim")
        return text.append(f" (+{new})", "bold red") if new else text

    pieces = [
        Text("so far", "dim"),
        figure("rejected", total.rejected, news.rejected),
        figure("dropped", total.dropped, news.dropped),
        figure("promoted", total.promoted, news.promoted),
        figure("evicted", total.evicted, news.evicted),
        figure("no memory", total.refused, news.refused),
    ]
    return flowed(pieces, width, gap="  ")


def _keys(look: Look) -> Text:
    pause = Text("p go on   PAUSED", "bold yellow") if look.paused else Text("p pause")
    legend = "   queue: high/medium/low, wait: p50/p95"
    return Text.assemble("q quit   ", pause, f"   s sort: {look.sort}", legend, style="dim")


def _problem(look: Look) -> Text:
    text = Text(f"no answer for {figures.duration(look.age_s)}: ", "bold red")
    return text.append_text(figures.words(look.problem or "", "red"))
