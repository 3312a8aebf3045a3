"""Bars and sparklines of a given width."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from rich.text import Text

from shared.cli.views.formatting import style_of
from shared.messages.worker_report import MemoryStatus

_LEVELS = "▁▂▃▄▅▆▇█"
_FULL = "━"
_EMPTY = "─"
_MARKS = {True: "┿", False: "┼"}
_ENDS = {True: "┥", False: "┤"}


def progress_bar(fraction: float, width: int) -> Text:
    """Return a bar for a fraction of 0 to 1."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return Text.assemble((_FULL * full, "yellow"), (_EMPTY * (width - full), "dim"))


def memory_bar(memory: MemoryStatus, width: int) -> Text:
    """Return a bar of used memory with marks at the soft and the hard limit.

    The bar ends at the hard limit, or at the used memory if that is more. Its colour is the
    colour of the memory pressure.
    """
    scale = max(memory.hard_bytes, memory.own_bytes, 1)

    hard = min(width - 1, int(memory.hard_bytes / scale * width))
    soft = min(hard - 1, int(memory.soft_bytes / scale * width)) if memory.soft_bytes else -1
    full = ceil(memory.own_bytes / scale * width)
    bar = Text()
    for column in range(width):
        filled = column < full
        if column == hard:
            bar.append(_ENDS[filled], "red")
        elif column == soft:
            bar.append(_MARKS[filled], "yellow")
        elif filled:
            bar.append(_FULL, style_of(memory.pressure) or "green")
        else:
            bar.append(_EMPTY, "dim")
    return bar


def sparkline(values: Sequence[float | None], width: int) -> Text:
    """Return the values as bars relative to the highest value; None is blank.

    If there are more values than columns, a column shows the highest value of its part.
    """
    if not values or width < 1:
        return Text()
    columns = min(width, len(values))
    edges = [len(values) * column // columns for column in range(columns + 1)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    highest = max((value for value in values if value), default=0.0)
    return Text("".join(_bar(part, highest) for part in parts), style="cyan")


def _bar(part: Sequence[float | None], highest: float) -> str:
    known = [value for value in part if value is not None]
    if not known:
        return " "
    if not highest:
        return _LEVELS[0]
    return _LEVELS[round(max(known) / highest * (len(_LEVELS) - 1))]
