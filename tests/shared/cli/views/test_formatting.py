"""Sizes, times and words from outside, as people read them."""

import pytest

from shared.cli.views import formatting
from shared.terminal_text import printable
from tests.shared.cli.reports import GIB, HOSTILE

MIB = 2**20


@pytest.mark.parametrize(
    ("count_bytes", "said"),
    [
        (0, "0 MiB"),
        (400 * MIB, "400 MiB"),
        (1000 * MIB, "1.0 GiB"),
        (int(8.14 * GIB), "8.1 GiB"),
        (int(9.97 * GIB), "10 GiB"),
        (512 * GIB, "512 GiB"),
    ],
)
def test_a_size_has_two_figures_that_matter(count_bytes: int, said: str) -> None:
    assert formatting.size(count_bytes) == said


def test_a_share_of_a_size_has_one_unit() -> None:
    assert formatting.share_of_size(300 * MIB, 8 * GIB) == "0.3/8.0 GiB"
    assert formatting.share_of_size(50 * GIB, 48 * GIB) == "50/48 GiB"
    assert formatting.share_of_size(3 * GIB, 0) == "3.0 GiB"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (59.9, "59s"), (185, "3m05s"), (3723, "1h02m"), (187_200, "2d04h"), (-1, "0s")],
)
def test_a_duration_has_two_units(seconds: float, said: str) -> None:
    assert formatting.duration(seconds) == said


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (0, "0ms"),
        (0.84, "0.8ms"),
        (9.97, "10ms"),
        (999.4, "999ms"),
        (999.6, "1.0s"),
        (59_900, "59.9s"),
        (59_960, "1m00s"),
        (75_000, "1m15s"),
    ],
)
def test_a_short_time_is_short(milliseconds: float, said: str) -> None:
    assert formatting.short_time(milliseconds) == said


def test_a_rate_below_ten_has_a_fraction() -> None:
    assert [formatting.rate(rate) for rate in (0, 0.5, 9.94, 9.96, 1312.4)] == [
        "0", "0.5", "9.9", "10", "1312",
    ]  # fmt: skip


def test_words_from_outside_cannot_steer_the_terminal() -> None:
    assert printable(HOSTILE) == "[red]x[/red] [/] red next line [link=http://x]"
    assert printable("a\x1b]0;title\x07b\x1b c\u202ed\x00") == "ab c d"


def test_words_are_no_markup() -> None:
    assert formatting.plain_text("[red]x[/red]").plain == "[red]x[/red]"
