"""One frame of `cluster top`, as a terminal shows it."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from shared.cli.views.frame import TopFrameData, allocate_rows, frame
from shared.cli.views.history import OverloadCounts
from shared.messages.worker_report import WorkerReport
from tests.shared.cli.reports import (
    ALL,
    IDLE,
    OVERLOADED,
    PRESSED,
    STRANGE,
    UNHEALTHY,
    WARMING,
    cluster,
    many,
)

STATES = {
    "no-worker": [],
    "idle": [IDLE],
    "loading": [WARMING],
    "overload": [OVERLOADED],
    "pressure": [PRESSED],
    "unhealthy": [UNHEALTHY],
    "strange": [STRANGE],
    "all": ALL,
    "forty": many(40),
}


def look(*workers: WorkerReport, **changes: object) -> TopFrameData:
    speeds = {worker.id: [None, 1.0, 2.0] * 20 for worker in workers}
    return TopFrameData(cluster(*workers), speeds, **changes)  # type: ignore[arg-type]


def printed(lines: list[Text], width: int) -> list[str]:
    """The lines as a terminal of that width gets them."""
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    for line in lines:
        console.print(line)
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [20, 80, 132, 200])
@pytest.mark.parametrize("state", STATES)
def test_no_line_is_longer_than_the_width(state: str, width: int) -> None:
    lines = frame(look(*STATES[state]), width)
    shown = printed(lines, width)
    assert len(shown) == len(lines)
    assert all(cell_len(line) <= width for line in shown)
    assert not any("\x1b" in line for line in shown)


@pytest.mark.parametrize("height", [5, 14, 24, 50])
@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("state", STATES)
def test_a_frame_is_no_higher_than_the_screen(state: str, width: int, height: int) -> None:
    assert len(frame(look(*STATES[state]), width, height)) <= height


@pytest.mark.parametrize(
    ("state", "figures"),
    [
        ("no-worker", ["unavailable", "0/0 workers ready", "No worker has joined"]),
        ("idle", ["cluster ready", "1/1 worker ready", "0/32", "2.0/48 GiB", "42s", "pinned"]),
        ("loading", ["warming 1/3 ✗1", "downloading", "43%", "no config.json", "17 GiB"]),
        ("overload", ["32/32", "3/80/17", "9.0s/1m15s", "1312", "16/16", "35%", "7.9/8.0 GiB"]),
        ("overload", ["rejected 47", "dropped 5", "promoted 17", "32 active, 100 queued"]),
        ("pressure", ["47/48 GiB", "evicted 2", "no memory 7"]),
        ("unhealthy", ["unhealthy", "failed", "50/48 GiB", "1 unhealthy", "loading it ended"]),
    ],
)
@pytest.mark.parametrize("width", [80, 200])
def test_what_matters_is_there(state: str, figures: list[str], width: int) -> None:
    text = "\n".join(line.plain for line in frame(look(*STATES[state]), width))
    for figure in figures:
        assert figure in text


def test_markup_from_outside_is_shown_as_it_is() -> None:
    text = "\n".join(printed(frame(look(STRANGE), 200), 200))
    assert "[red]x[/red] [/]" in text


def test_what_came_in_the_last_interval_stands_in_brackets() -> None:
    text = "\n".join(
        line.plain for line in frame(look(OVERLOADED, new_counts=OverloadCounts(3)), 80)
    )
    assert "rejected 47 (+3)  dropped 5  promoted 17" in text


def test_forty_workers_fold_into_a_small_screen_and_say_so() -> None:
    lines = [line.plain for line in frame(look(*many(40)), 80, 24)]
    assert sum(line.startswith("mac-") and "/32" in line for line in lines) >= 5
    text = " ".join(line.strip() for line in lines)
    assert "… 33 more workers" in text
    assert "enlarge the window or use cluster status" in text
    assert lines[-1].startswith("q quit")


def test_in_a_small_screen_models_that_need_attention_come_first() -> None:
    lines = [line.plain for line in frame(look(*many(40), OVERLOADED, WARMING), 80, 24)]
    models = lines.index(next(line for line in lines if line.startswith("model")))
    assert "mac-2" in lines[models + 1] and "downloading" in lines[models + 1]


def test_sorting_by_load_puts_the_busiest_first() -> None:
    lines = [line.plain for line in frame(look(*many(40), sort="load"), 80, 24)]
    assert lines[4].startswith("mac-40")
    assert "s sort: load" in lines[-1]


def test_a_stale_frame_is_grey_below_the_error_and_its_age() -> None:
    problem = "no controller answers at [nats]; " + "is `controller` running? " * 10
    first, *rest = frame(look(OVERLOADED, error=problem, age_s=75), 80)
    assert first.plain.startswith("no answer for 1m15s: no controller answers at [nats]")
    assert first.cell_len == 80 and first.plain.endswith("…")
    assert {str(line.style) for line in rest} == {"bright_black"}
    assert not any(line.spans for line in rest)
    assert any("3/80/17" in line.plain for line in rest)


def test_a_pause_is_said() -> None:
    assert "PAUSED" in frame(look(IDLE, paused=True), 80)[-1].plain


def test_a_frame_that_is_printed_once_explains_no_keys() -> None:
    assert "q quit" not in frame(look(IDLE, live=False), 80)[-1].plain


@pytest.mark.parametrize(
    ("needs", "room", "given"),
    [
        ([2, 2, 2], 12, [2, 2, 2]),
        ([40, 40, 40], 29, [13, 5, 5]),
        ([40, 1, 40], 29, [16, 1, 6]),
        ([40, 40, 40], 4, [2, 0, 0]),
        ([40, 40, 40], 2, [0, 0, 0]),
        ([], 10, []),
    ],
)
def test_sections_share_a_small_screen_by_weight(
    needs: list[int], room: int, given: list[int]
) -> None:
    assert allocate_rows(needs, [3, 1, 1][: len(needs)], room) == given
