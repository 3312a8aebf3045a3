"""Tables that fit any width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from shared.cli.views.fitted_table import Column, flow, table, truncate, wrap

Row = tuple[str, str, str]
ROWS: list[Row] = [("mac-1", "ready", "1"), ("a-long-name-of-a-mac", "warming", "22")]


def column(index: int, title: str, **options: object) -> Column[Row]:
    return Column(title, lambda row: Text(row[index]), **options)  # type: ignore[arg-type]


def lines(width: int, *columns: Column[Row]) -> list[str]:
    return [line.plain for line in table(columns, ROWS, width)]


def test_a_wide_table_shows_everything_aligned() -> None:
    columns = (column(0, "name"), column(1, "state"), column(2, "number", right=True))
    assert lines(80, *columns) == [
        "name                  state    number",
        "mac-1                 ready         1",
        "a-long-name-of-a-mac  warming      22",
    ]


def test_a_column_shrinks_with_an_ellipsis_before_one_is_left_out() -> None:
    columns = (column(0, "name", min_width=8, keep_end=True), column(1, "state", rank=1))
    assert lines(18, *columns) == ["name       state", "mac-1      ready", "a-lo…-mac  warming"]


def test_the_least_important_columns_go_first() -> None:
    columns = (column(0, "name", min_width=8), column(1, "state", rank=2), column(2, "n", rank=1))
    assert lines(12, *columns) == ["name      n", "mac-1     1", "a-long-…  22"]
    assert lines(8, *columns) == ["name", "mac-1", "a-long-…"]


def test_what_must_stay_is_cut_with_an_ellipsis_in_the_end() -> None:
    assert lines(9, column(0, "name"), column(1, "state")) == [
        "name    …",
        "mac-1   …",
        "a-long-n…",
    ]


def test_a_column_without_content_is_left_out() -> None:
    empty: Column[Row] = Column("empty", lambda _: Text())
    assert lines(80, empty, column(2, "n")) == ["n", "1", "22"]


def test_a_cell_can_draw_itself_into_what_is_left() -> None:
    drawn: Column[Row] = Column(
        "bar", lambda _: lambda width: Text("#" * width), min_width=4, max_width=30
    )
    assert lines(80, drawn)[1] == "#" * 30
    assert lines(10, drawn)[1] == "#" * 10


@pytest.mark.parametrize(
    ("width", "end", "middle"),
    [(9, "123456789", "123456789"), (8, "1234567…", "1234…789"), (1, "…", "…"), (0, "", "")],
)
def test_what_is_cut_says_so(width: int, end: str, middle: str) -> None:
    assert truncate(Text("123456789"), width).plain == end
    assert truncate(Text("123456789"), width, keep_end=True).plain == middle


def test_wide_characters_count_twice() -> None:
    assert truncate(Text("模型模型"), 6).plain == "模型…"
    assert truncate(Text("模型模型"), 6, keep_end=True).plain == "模…型"


def test_pieces_flow_into_as_many_lines_as_they_need() -> None:
    pieces = [Text("one two"), Text("three"), Text("four")]
    assert [line.plain for line in flow(pieces, 12, gap="  ")] == ["one two", "three  four"]


def test_text_breaks_between_words_only() -> None:
    text = Text("the weights are missing in /a/very/long/path/of/a/model")
    assert [line.plain for line in wrap(text, 20, hanging=2)] == [
        "the weights are",
        "  missing in",
        "  /a/very/l…/a/model",
    ]


@given(st.text(), st.integers(0, 40), st.booleans())
def test_nothing_is_ever_longer_than_its_width(words: str, width: int, keep_end: bool) -> None:
    assert truncate(Text(words), width, keep_end=keep_end).cell_len <= width
    rows: list[Row] = [(words, "x", words)]
    for line in table([column(0, "name"), column(2, words, rank=1, min_width=3)], rows, width):
        assert line.cell_len <= width
