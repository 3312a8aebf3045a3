"""How fast a worker is, and how evenly its engines share the work."""

import pytest

from tests.worker.virtual_time import Clock
from worker.engine_process.blas_threads import ThroughputMeter


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    throughput = ThroughputMeter(clock)
    for _ in range(100):
        clock.now += 0.1
        throughput.add(0, 4)
    assert throughput.tokens_per_s() == pytest.approx(40, abs=1)
    clock.now += 6
    assert throughput.tokens_per_s() == 0


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([], 1.0), ([5], 1.0), ([5, 5], 1.0), ([10, 0], 0.5), ([3, 1], 0.8), ([9, 0, 0, 0], 0.25)],
)
def test_the_balance_is_one_when_all_had_the_same(tokens: list[int], expected: float) -> None:
    throughput = ThroughputMeter(Clock())
    for engine, count in enumerate(tokens):
        throughput.add(engine, count)
    assert throughput.balance(range(len(tokens))) == expected


def test_the_balance_forgets_what_is_long_ago() -> None:
    clock = Clock()
    throughput = ThroughputMeter(clock)
    throughput.add(0, 100)
    clock.now += 61
    throughput.add(0, 1)
    throughput.add(1, 1)
    assert throughput.balance([0, 1]) == 1.0
