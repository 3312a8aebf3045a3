"""What `cluster top` remembers."""

from shared.cli.views.history import MINUTE_S, OverloadCounts, WorkerHistory, rejection_counts
from shared.ids import WorkerId
from shared.messages.worker_report import QueuePriorityStatus, QueueStatus, WorkerReport
from tests.shared.cli.reports import OVERLOADED, PRESSED, worker

MAC = WorkerId("mac-1")


def rejecting(number: int, boot_id: str = "b1") -> WorkerReport:
    queue = QueueStatus(levels={"low": QueuePriorityStatus(rejected=number)})
    return worker(boot_id=boot_id, queue=queue)


def test_refusals_of_all_priorities_and_workers_add_up() -> None:
    assert rejection_counts([OVERLOADED, PRESSED]) == OverloadCounts(
        47, 5, 17, evicted=2, refused=7
    )


def test_the_first_look_brings_no_news() -> None:
    history = WorkerHistory(1)
    history.observe([rejecting(5)], now=100)
    assert history.new_counts == OverloadCounts()


def test_news_are_what_came_since_the_look_before() -> None:
    history = WorkerHistory(1)
    for second, rejected in enumerate((5, 7, 7)):
        history.observe([rejecting(rejected)], now=100 + second)
        assert history.new_counts.rejected == (0, 2, 0)[second]


def test_a_worker_that_is_new_brings_no_news() -> None:
    history = WorkerHistory(1)
    history.observe([rejecting(5)], now=100)
    history.observe([rejecting(3, boot_id="b2")], now=101)
    assert history.new_counts.rejected == 0


def test_a_worker_that_was_away_for_a_look_brings_only_what_is_new() -> None:
    history = WorkerHistory(1)
    history.observe([rejecting(5)], now=100)
    history.observe([], now=101)
    history.observe([rejecting(6)], now=102)
    assert history.new_counts.rejected == 1


def test_the_last_minute_ends_with_now() -> None:
    history = WorkerHistory(1)
    for second in range(100, 171):
        history.observe([worker(tokens_per_s=second)], now=second)
    assert history.token_rates(MAC, 170) == list(range(111, 171))


def test_a_rate_holds_until_the_next_look() -> None:
    history = WorkerHistory(10)
    history.observe([worker(tokens_per_s=1)], now=100)
    history.observe([worker(tokens_per_s=2)], now=110)
    assert history.token_rates(MAC, 110)[-12:] == [None, *[1] * 10, 2]


def test_a_pause_leaves_a_gap() -> None:
    history = WorkerHistory(1)
    history.observe([worker(tokens_per_s=1)], now=100)
    history.observe([worker(tokens_per_s=2)], now=105)
    assert history.token_rates(MAC, 105)[-6:] == [1, 1, 1, None, None, 2]


def test_nothing_older_than_a_minute_is_kept() -> None:
    history = WorkerHistory(1)
    history.observe([worker(tokens_per_s=1)], now=100)
    history.observe([], now=200)
    assert history.token_rates(MAC, 200) == [None] * MINUTE_S
