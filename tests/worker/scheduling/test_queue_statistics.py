"""What a queue tells of itself."""

import pytest

from tests.worker.virtual_time import Clock
from worker.scheduling.queue_statistics import QueueStatistics


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def figures(clock: Clock) -> QueueStatistics:
    return QueueStatistics(clock)


def test_counts_and_waits_stand_by_priority(figures: QueueStatistics) -> None:
    for wait_ms in range(1, 101):
        figures.admitted("high", wait_ms / 1000)
    figures.rejected("low")
    figures.dropped("low")
    figures.promoted("medium")
    status = figures.status({"low": 3}, {"low": 7})
    assert status.room == {"low": 7}
    high, medium, low = (status.levels[level] for level in ("high", "medium", "low"))
    assert (high.admitted, high.wait_p50_ms, high.wait_p95_ms) == (100, 51.0, 96.0)
    assert (medium.promoted, medium.wait_p50_ms, medium.queued) == (1, 0.0, 0)
    assert (low.queued, low.rejected, low.dropped) == (3, 1, 1)


def test_the_rate_is_that_of_the_last_half_minute(figures: QueueStatistics, clock: Clock) -> None:
    assert figures.drain_per_s == 0
    for _ in range(10):
        clock.now += 1
        figures.left()
    assert figures.drain_per_s == pytest.approx(1.0)
    clock.now += 20
    assert figures.drain_per_s == pytest.approx(1 / 3)
    clock.now += 31
    assert figures.drain_per_s == 0


def test_those_who_find_it_full_are_told_to_come_back_one_after_the_other(
    figures: QueueStatistics, clock: Clock
) -> None:
    for _ in range(20):
        clock.now += 0.5
        figures.left()
    assert [figures.book_retry_ms() for _ in range(3)] == [500, 1000, 1500]
    clock.now += 1
    assert figures.book_retry_ms() == pytest.approx(1050, abs=5)
    clock.now += 5
    assert figures.book_retry_ms() == pytest.approx(800, abs=5)


def test_a_retry_is_neither_at_once_nor_never(figures: QueueStatistics, clock: Clock) -> None:
    assert figures.book_retry_ms() == 1000  # nothing is known yet
    clock.now += 10
    for _ in range(10_000):
        figures.left()
    assert figures.book_retry_ms() == 100
    clock.now += 40
    figures.left()
    assert max(figures.book_retry_ms() for _ in range(100)) == 60_000
