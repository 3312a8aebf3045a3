"""Tables that fit a width: columns shrink, then the least important columns are dropped."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.text import Text

R = TypeVar("R")

Cell = Text | Callable[[int], Text]
"""Text, or a function that returns text for a width."""

ELLIPSIS = "…"
_GAP = 2


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """A column of a table with rows of type R. A column without content is dropped.

    Attributes:
        cell: returns the cell of a row.
        rank: columns with the highest rank are dropped first if the width is too small; 0: never.
        min_width: minimum width; None: the width of the widest cell.
        max_width: width of cells that are functions, if the table has enough columns.
        right: align to the right.
        keep_end: shorten long cells in the middle, not at the end.
    """

    title: str
    cell: Callable[[R], Cell]
    rank: int = 0
    min_width: int | None = None
    max_width: int = 0
    right: bool = False
    keep_end: bool = False


def table(columns: Iterable[Column[R]], rows: Sequence[R], width: int) -> list[Text]:
    """Return a header line and a line for each row, of at most `width` columns."""
    sized = [_SizedColumn(column, [column.cell(row) for row in rows]) for column in columns]
    shown = _columns_that_fit([column for column in sized if not column.empty], width)
    widths = _widths(shown, width)
    lines = zip(
        *(column.lines(own) for column, own in zip(shown, widths, strict=True)), strict=True
    )
    return [truncate(_joined(line), width) for line in lines]


def flow(pieces: Iterable[Text], width: int, gap: str = "   ") -> list[Text]:
    """Join pieces into lines; a piece that does not fit starts a new line."""
    lines: list[Text] = []
    for piece in pieces:
        if lines and lines[-1].cell_len + len(gap) + piece.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], gap, piece)
        else:
            lines.append(truncate(piece, width))
    return lines


def truncate(text: Text, width: int, *, keep_end: bool = False) -> Text:
    """Return the text shortened to `width` with an ellipsis."""
    if text.cell_len <= width:
        return text
    if width < 1:
        return Text()
    tail_width = (width - 1) // 2 if keep_end else 0
    head = _prefix_length(text.plain, width - 1 - tail_width)
    tail = _prefix_length(reversed(text.plain), tail_width)
    return Text.assemble(text[:head], (ELLIPSIS, text.style), text[len(text) - tail :])


def wrap(text: Text, width: int, hanging: int = 0) -> list[Text]:
    """Return the text in lines that break between words; long words are shortened in the middle.

    Args:
        hanging: indentation of all lines except the first.
    """
    line_width = max(1, width - hanging)
    pieces = [truncate(word, line_width, keep_end=True) for word in text.split(" ") if word.plain]
    first, *others = flow(pieces, line_width, gap=" ") or [Text()]
    return [first, *(Text.assemble(" " * hanging, line) for line in others)]


class _SizedColumn(Generic[R]):
    """A column with its cells and widths."""

    def __init__(self, column: Column[R], cells: list[Cell]) -> None:
        self._column = column
        self._cells = cells
        self.rank = column.rank
        self.empty = all(isinstance(cell, Text) and not cell.plain for cell in cells)
        widths = (cell.cell_len if isinstance(cell, Text) else column.max_width for cell in cells)
        self.natural = max(cell_len(column.title), *widths, 0)
        least = self.natural if column.min_width is None else column.min_width
        self.minimum = min(self.natural, least)

    def lines(self, width: int) -> Iterator[Text]:
        """Return the title and the cells, each padded or shortened to `width`."""
        for cell in (Text(self._column.title, style="dim"), *self._cells):
            text = cell if isinstance(cell, Text) else cell(width)
            text = truncate(text, width, keep_end=self._column.keep_end)
            space = " " * (width - text.cell_len)
            yield Text.assemble(*((space, text) if self._column.right else (text, space)))


def _columns_that_fit(columns: list[_SizedColumn[R]], width: int) -> list[_SizedColumn[R]]:
    """Return the columns that fit at their minimum width."""

    def minimum_width() -> int:
        return sum(column.minimum for column in columns) + _GAP * (len(columns) - 1)

    while minimum_width() > width and any(column.rank for column in columns):
        last = max(columns, key=lambda column: column.rank)
        columns = [column for column in columns if column is not last]
    return columns


def _widths(columns: list[_SizedColumn[R]], width: int) -> list[int]:
    """Return the widths of the columns; the widest columns shrink first."""
    widths = [column.natural for column in columns]
    available = width - _GAP * (len(columns) - 1)
    while sum(widths) > available:
        can_shrink = [i for i, column in enumerate(columns) if widths[i] > column.minimum]
        if not can_shrink:
            break
        widths[max(can_shrink, key=lambda i: widths[i])] -= 1
    return widths


def _joined(cells: Iterable[Text]) -> Text:
    line = Text(" " * _GAP).join(cells)
    line.rstrip()
    return line


def _prefix_length(characters: Iterable[str], width: int) -> int:
    """Return how many of the first characters fit into `width`."""
    number = 0
    for character in characters:
        width -= cell_len(character)
        if width < 0:
            break
        number += 1
    return number
