"""How fast requests are taken from a queue, learnt only while there is one."""

import pytest

from tests.worker.virtual_time import Clock
from worker.scheduling.drain_rate import DrainRate


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rate(clock: Clock) -> DrainRate:
    return DrainRate(clock)


def _admit(rate: DrainRate, clock: Clock, *intervals_s: float) -> None:
    for interval_s in intervals_s:
        clock.now += interval_s
        rate.admitted()


def test_who_found_a_place_at_once_tells_nothing(rate: DrainRate, clock: Clock) -> None:
    for _ in range(10):
        _admit(rate, clock, 1.0)
        rate.observe(waiting=False)
    assert rate.per_s is None


def test_a_few_are_enough_and_fewer_are_not(rate: DrainRate, clock: Clock) -> None:
    rate.observe(waiting=True)
    _admit(rate, clock, 0.5, 0.5, 0.5)
    assert rate.per_s is None
    _admit(rate, clock, 0.5)
    assert rate.per_s == pytest.approx(2.0)


def test_a_step_that_frees_several_places_counts_for_all_of_them(
    rate: DrainRate, clock: Clock
) -> None:
    rate.observe(waiting=True)
    _admit(rate, clock, 4.0, 0.0, 0.0, 0.0)
    assert rate.per_s == pytest.approx(1.0)


def test_all_at_one_moment_are_no_rate(rate: DrainRate, clock: Clock) -> None:
    rate.observe(waiting=True)
    _admit(rate, clock, 0.0, 0.0, 0.0, 0.0)
    assert rate.per_s is None


def test_time_without_a_queue_does_not_count(rate: DrainRate, clock: Clock) -> None:
    for _ in range(4):
        rate.observe(waiting=True)
        clock.now += 0.25
        rate.observe(waiting=True)  # one more came
        _admit(rate, clock, 0.25)
        rate.observe(waiting=False)
        clock.now += 20
        _admit(rate, clock, 1.0)  # at once: it tells nothing
    assert rate.per_s == pytest.approx(2.0)


def test_it_follows_the_last_ones(rate: DrainRate, clock: Clock) -> None:
    rate.observe(waiting=True)
    _admit(rate, clock, *[10.0] * 100)
    _admit(rate, clock, *[0.1] * 32)
    assert rate.per_s == pytest.approx(10.0)


def test_long_without_a_queue_it_is_forgotten(rate: DrainRate, clock: Clock) -> None:
    rate.observe(waiting=True)
    _admit(rate, clock, *[60.0] * 5)  # long ago, but there was a queue all the time
    assert rate.per_s == pytest.approx(1 / 60)
    rate.observe(waiting=False)
    clock.now += 31
    rate.observe(waiting=True)
    assert rate.per_s is None
