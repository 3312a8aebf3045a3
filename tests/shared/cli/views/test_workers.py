"""The lines of workers."""

from shared.cli.views.workers import sorted_workers, worker_table
from shared.messages.worker_report import MemoryStatus, PreWarmingStatus
from tests.shared.cli.reports import GIB, OVERLOADED, PLAIN, WARMING, many, worker


def test_workers_are_sorted_as_asked() -> None:
    idle, busy, full = (
        worker("b"),
        worker("c", queued_requests=9),
        worker("a", memory=MemoryStatus(own_bytes=9 * GIB, hard_bytes=10 * GIB)),
    )
    assert sorted_workers([idle, busy, full], "name") == [full, idle, busy]
    assert sorted_workers([idle, busy, full], "load") == [busy, full, idle]
    assert sorted_workers([idle, busy, full], "memory") == [full, idle, busy]


def test_load_is_relative_to_the_slots() -> None:
    small, large = worker("small", active_requests=2, max_batch_size=2), worker(active_requests=3)
    assert sorted_workers([large, small], "load") == [small, large]


def test_equal_workers_stay_in_the_order_of_their_names() -> None:
    workers = [worker(name) for name in ("c", "a", "b")]
    assert [one.id for one in sorted_workers(workers, "load")] == ["a", "b", "c"]


def test_a_line_has_all_figures_at_200_columns() -> None:
    titles, line = (text.plain for text in worker_table([OVERLOADED], 200))
    assert titles.split() == [
        "worker", "state", "device", "active", "queue", "wait", "tok/s", "memory", "limits",
        "cores", "restarts", "balance", "up",
    ]  # fmt: skip
    assert line.split() == [
        "mac-3", "ready", "Apple", "M4", "Max", "(metal)", "32/32", "3/80/17", "9.0s/1m15s",
        "1312", "2.0/48", "GiB", "━" + "─" * 20 + "┼─┤", "3.2/16", "3", "0.50", "1h02m",
    ]  # fmt: skip


def test_pre_warming_stands_beside_the_state_until_it_is_over() -> None:
    assert "warming 1/3 ✗1" in worker_table([WARMING], 80)[1].plain
    complete = worker(pre_warming=PreWarmingStatus(total=3, completed=3))
    assert "ready  " in worker_table([complete], 80)[1].plain


def test_the_sparkline_stands_at_80_columns_where_speeds_are_known() -> None:
    lines = worker_table([OVERLOADED], 80, {OVERLOADED.id: [1.0, 2.0] * 30})
    assert "last min" in lines[0].plain and "████████" in lines[1].plain


def test_an_old_version_shows_what_it_knows() -> None:
    assert worker_table([PLAIN], 80)[1].plain.split() == [
        "old", "ready", "0/0", "0", "-", "0", "0", "MiB", "0.0", "0", "0s",
    ]  # fmt: skip


def test_forty_workers_are_forty_lines() -> None:
    assert len(worker_table(many(40), 80)) == 41
