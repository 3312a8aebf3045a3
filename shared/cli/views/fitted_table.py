"""A table that fits a width: columns shrink, then the least important ones are left out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.text import Text

R = TypeVar("R")

Cell = Text | Callable[[int], Text]
"""Text, or what draws itself into a width."""

ELLIPSIS = "…"
_GAP = 2
_LEAST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column of a table whose rows are of type R. It is left out where it has no content.

    Attributes:
        cell: what stands in a row.
        rank: 0 stays always; of the others the highest go first when there is no room.
        least: how narrow it may become; None: as wide as its widest cell.
        most: how wide the cells are that draw themselves.
        right: aligned to the right.
        keep_end: a cell that is too long loses its middle, not its end.
    """

    title: str
    cell: Callable[[R], Cell]
    rank: int = 0
    least: int | None = None
    most: int = 0
    right: bool = False
    keep_end: bool = False


def table(columns: Iterable[Column[R]], rows: Sequence[R], width: int) -> list[Text]:
    """The titles and one line for each row; none is longer than `width`."""
    drawn = [_Drawn(column, [column.cell(row) for row in rows]) for column in columns]
    shown = _chosen([column for column in drawn if not column.empty], width)
    widths = _widths(shown, width)
    lines = zip(
        *(column.lines(own) for column, own in zip(shown, widths, strict=True)), strict=True
    )
    return [shortened(_joined(line), width) for line in lines]


def flowed(pieces: Iterable[Text], width: int, gap: str = "   ") -> list[Text]:
    """The pieces one after another, with a new line where the next one finds no room."""
    lines: list[Text] = []
    for piece in pieces:
        if lines and lines[-1].cell_len + len(gap) + piece.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], gap, piece)
        else:
            lines.append(shortened(piece, width))
    return lines


def shortened(text: Text, width: int, *, keep_end: bool = False) -> Text:
    """The text, with an ellipsis in place of what `width` has no room for."""
    if text.cell_len <= width:
        return text
    if width < 1:
        return Text()
    tail_width = (width - 1) // 2 if keep_end else 0
    head = _fitting(text.plain, width - 1 - tail_width)
    tail = _fitting(reversed(text.plain), tail_width)
    return Text.assemble(text[:head], (ELLIPSIS, text.style), text[len(text) - tail :])


def wrapped(text: Text, width: int, hanging: int = 0) -> list[Text]:
    """The text in lines that break between words; a word that is too long loses its middle.

    Args:
        hanging: columns by which all lines but the first are indented.
    """
    room = max(1, width - hanging)
    pieces = [shortened(word, room, keep_end=True) for word in text.split(" ") if word.plain]
    first, *others = flowed(pieces, room, gap=" ") or [Text()]
    return [first, *(Text.assemble(" " * hanging, line) for line in others)]


class _Drawn(Generic[R]):
    """A column and its cells."""

    def __init__(self, column: Column[R], cells: list[Cell]) -> None:
        self._column = column
        self._cells = cells
        self.rank = column.rank
        self.empty = all(isinstance(cell, Text) and not cell.plain for cell in cells)
        widths = (cell.cell_len if isinstance(cell, Text) else column.most for cell in cells)
        self.natural = max(cell_len(column.title), *widths, 0)
        least = self.natural if column.least is None else column.least
        self.narrowest = min(self.natural, least)

    def lines(self, width: int) -> Iterator[Text]:
        """The title and the cells, each as wide as `width`."""
        for cell in (Text(self._column.title, style="dim"), *self._cells):
            text = cell if isinstance(cell, Text) else cell(width)
            text = shortened(text, width, keep_end=self._column.keep_end)
            space = " " * (width - text.cell_len)
            yield Text.assemble(*((space, text) if self._column.right else (text, space)))


def _chosen(columns: list[_Drawn[R]], width: int) -> list[_Drawn[R]]:
    """Those that find room when all are as narrow as they may be."""

    def needed() -> int:
        return sum(column.narrowest for column in columns) + _GAP * (len(columns) - 1)

    while needed() > width and any(column.rank for column in columns):
        last = max(columns, key=lambda column: column.rank)
        columns = [column for column in columns if column is not last]
    return columns


def _widths(columns: list[_Drawn[R]], width: int) -> list[int]:
    """The widest columns give way first, each down to its narrowest."""
    widths = [column.natural for column in columns]
    room = width - _GAP * (len(columns) - 1)
    while sum(widths) > room:
        can_shrink = [i for i, column in enumerate(columns) if widths[i] > column.narrowest]
        if not can_shrink:
            break
        widths[max(can_shrink, key=lambda i: widths[i])] -= 1
    return widths


def _joined(cells: Iterable[Text]) -> Text:
    line = Text(" " * _GAP).join(cells)
    line.rstrip()
    return line


def _fitting(characters: Iterable[str], width: int) -> int:
    """How many of the characters, from the first on, find room in `width`."""
    number = 0
    for character in characters:
        width -= cell_len(character)
        if width < 0:
            break
        number += 1
    return number
