"""Bars and sparklines."""

import pytest

from shared.cli.views.gauges import memory_bar, progress_bar, sparkline
from shared.messages.worker_report import MemoryPressure, MemoryStatus


@pytest.mark.parametrize(
    ("share", "drawn"),
    [
        (-1, "──────────"),
        (0, "──────────"),
        (0.43, "━━━━──────"),
        (1, "━━━━━━━━━━"),
        (7, "━━━━━━━━━━"),
    ],
)
def test_a_progress_bar_is_as_full_as_its_share(share: float, drawn: str) -> None:
    assert progress_bar(share, 10).plain == drawn


@pytest.mark.parametrize(
    ("own_bytes", "drawn"),
    [
        (0, "───────┼─┤"),
        (1, "━──────┼─┤"),
        (50, "━━━━━──┼─┤"),
        (85, "━━━━━━━┿━┤"),
        (100, "━━━━━━━┿━┥"),
    ],
)
def test_a_memory_bar_marks_both_limits(own_bytes: int, drawn: str) -> None:
    memory = MemoryStatus(own_bytes=own_bytes, soft_bytes=75, hard_bytes=100)
    assert memory_bar(memory, 10).plain == drawn


def test_a_memory_bar_goes_beyond_the_hard_limit() -> None:
    memory = MemoryStatus(own_bytes=200, soft_bytes=50, hard_bytes=100)
    assert memory_bar(memory, 10).plain == "━━┿━━┥━━━━"


def test_limits_that_lie_close_together_both_stay() -> None:
    assert memory_bar(MemoryStatus(soft_bytes=99, hard_bytes=100), 6).plain == "────┼┤"


@pytest.mark.parametrize(
    ("pressure", "colour"), [("none", "green"), ("soft", "yellow"), ("hard", "red")]
)
def test_a_memory_bar_has_the_colour_of_the_pressure(pressure: MemoryPressure, colour: str) -> None:
    bar = memory_bar(MemoryStatus(own_bytes=5, hard_bytes=10, pressure=pressure), 10)
    assert str(bar.spans[0].style) == colour


def test_a_sparkline_is_relative_to_its_highest_value() -> None:
    assert sparkline([0, 1, 3.5, 7], 4).plain == "▁▂▅█"
    assert sparkline([0, 0], 2).plain == "▁▁"


def test_a_sparkline_leaves_blank_what_nobody_knows() -> None:
    assert sparkline([None, None, 7, None], 4).plain == "  █ "


def test_a_short_sparkline_shows_the_peaks() -> None:
    assert sparkline([0, 7, None, None, 0, 0, 7, 0], 4).plain == "█ ▁█"


def test_a_sparkline_is_no_wider_than_its_values() -> None:
    assert sparkline([1, 2], 60).cell_len == 2
    assert sparkline([], 60).cell_len == 0
