"""The batch size that keeps a latency target, on a machine whose steps take `fixed + each * rows`
seconds, more or less."""

import random
import statistics
from dataclasses import dataclass, field
from typing import Any

import pytest

from shared.settings.tree import AdaptiveBatching
from worker.engine.adaptive_batch_size import AdaptiveBatchSize

_MOST = 32
_TOKENS = 48


@dataclass
class Machine:
    """Serves requests of so many tokens each, as many at once as the limit allows."""

    size: AdaptiveBatchSize
    fixed_s: float
    each_s: float
    noise: float = 0.1
    now: float = 0.0
    _rows: list[int] = field(default_factory=list)
    _chance: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self, seconds: float, clients: int = 64) -> None:
        until = self.now + seconds
        while self.now < until:
            while len(self._rows) < min(self.size.limit, clients):
                self._rows.append(self._chance.randint(1, _TOKENS))
            rows = len(self._rows)
            noise = self._chance.uniform(1 - self.noise, 1 + self.noise)
            took_s = self.step_s(rows) * noise
            self.now += took_s
            self._rows = [left - 1 for left in self._rows if left > 1]
            self.size.stepped(took_s, rows, clients - rows, self.now)

    def step_s(self, rows: int) -> float:
        return self.fixed_s + self.each_s * rows

    @property
    def in_band(self) -> bool:
        return 0.08 <= self.step_s(self.size.limit) <= 0.12 + 1e-9

    def changes_since(self, when: float) -> int:
        return sum(change.at >= when for change in self.size.changes)


def _machine(
    fixed_s: float, each_s: float, start: int = _MOST, noise: float = 0.1, **how: Any
) -> Machine:
    size = AdaptiveBatchSize(AdaptiveBatching(**how), 1, _MOST, start)
    return Machine(size, fixed_s, each_s, noise)


_MACHINES = [(0.05, 0.005), (0.02, 0.01), (0.08, 0.0005), (0.01, 0.03), (0.03, 0.06)]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("start", [1, _MOST])
@pytest.mark.parametrize(("fixed_s", "each_s"), _MACHINES)
def test_it_finds_the_target_from_both_sides_and_stays(
    fixed_s: float, each_s: float, start: int, noise: float
) -> None:
    machine = _machine(fixed_s, each_s, start, noise)
    machine.run(30)
    for _ in range(5):
        began_at = machine.now
        machine.run(60)
        assert machine.changes_since(began_at) <= 10
        assert machine.in_band


def test_what_is_far_too_slow_goes_by_halves() -> None:
    machine = _machine(0.0, 0.02)
    machine.run(3.5)
    (first, *_) = machine.size.changes
    assert (first.before, first.after, first.reason) == (32, 16, "far too slow")


def test_where_fewer_rows_make_no_step_faster_they_come_back() -> None:
    machine = _machine(0.19, 0.0002)
    machine.run(300)
    assert machine.size.limit == _MOST
    assert {change.reason for change in machine.size.changes} >= {"slow", "out of reach"}


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(("fixed_s", "each_s", "knee"), [(0.2, 0.02, 10), (0.3, 0.05, 6)])
def test_where_the_target_is_out_of_reach_it_goes_to_where_rows_take_half_of_the_time(
    fixed_s: float, each_s: float, knee: int, noise: float
) -> None:
    machine = _machine(fixed_s, each_s, noise=noise)
    machine.run(60)
    limits = []
    for _ in range(5):
        began_at = machine.now
        for _ in range(12):
            machine.run(5)
            limits.append(machine.size.limit)
        assert machine.changes_since(began_at) <= 10
    assert knee / 2 <= statistics.median(limits) <= 2 * knee


def test_a_target_out_of_reach_is_found_to_be_so_from_below_too() -> None:
    machine = _machine(0.2, 0.002, start=1)
    machine.run(60)
    assert machine.size.limit > _MOST / 2


def test_one_row_that_is_too_slow_keeps_no_others_out() -> None:
    machine = _machine(0.3, 0.001)
    machine.run(30, clients=1)
    assert machine.size.limit == _MOST
    machine.run(60)
    assert machine.size.limit == _MOST


def test_a_busy_machine_that_becomes_free_gives_all_rows_back() -> None:
    machine = _machine(0.5, 0.05)
    machine.run(60)
    machine.fixed_s, machine.each_s = 0.02, 0.01
    machine.run(30)
    assert machine.in_band


def test_fast_steps_let_it_have_all_rows() -> None:
    machine = _machine(0.005, 0.0005, start=1)
    machine.run(30)
    assert machine.size.limit == _MOST


def test_it_tries_no_more_rows_while_nobody_waits() -> None:
    machine = _machine(0.005, 0.0005, start=4)
    machine.run(30, clients=4)
    assert machine.size.limit == 4
    machine.run(30, clients=3)
    assert not machine.size.changes


def test_a_longer_text_or_a_slower_machine_moves_it_again() -> None:
    machine = _machine(0.02, 0.008)
    machine.run(60)
    settled = machine.size.limit
    machine.each_s *= 2
    machine.run(60)
    assert machine.in_band
    assert machine.size.limit < settled
    machine.each_s /= 2
    machine.run(200)
    assert machine.in_band


def test_nothing_is_judged_until_the_rows_that_are_too_many_have_left() -> None:
    size = AdaptiveBatchSize(AdaptiveBatching(), 1, _MOST, _MOST)
    for number in range(5):
        size.stepped(0.5, 32, 0, number)
    assert size.limit == 16
    for number in range(100):
        size.stepped(0.5, 17 + number % 10, 0, 10.0 + number)
    assert (size.limit, size.latency_s) == (16, 0.0)


def test_stability_is_the_share_of_judgements_that_changed_nothing() -> None:
    size = AdaptiveBatchSize(AdaptiveBatching(max_adjustment_step=1), 1, _MOST, 30)
    assert size.stability == 1.0
    for number in range(10):
        size.stepped(0.01, size.limit, 1, number)
    assert (size.limit, size.stability) == (32, 0.0)
    for number in range(10):
        size.stepped(0.1, size.limit, 1, 20.0 + number)
    assert size.stability == 0.5


def test_the_limit_keeps_to_its_bounds_whatever_comes() -> None:
    chance = random.Random(7)
    size = AdaptiveBatchSize(AdaptiveBatching(), 3, 9, 100)
    assert size.limit == 9
    for number in range(5000):
        size.stepped(chance.choice([0.001, 0.1, 10.0]), chance.randint(1, 9), 1, number / 10)
        assert 3 <= size.limit <= 9


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_after_a_hiccup_of_the_machine_the_rows_come_back_that_the_target_allows(
    noise: float,
) -> None:
    """One row alone is in the band already; the others do not make a step much longer."""
    machine = _machine(0.085, 0.004, 8, noise)
    machine.run(30)
    machine.fixed_s = 0.4
    machine.run(5)
    machine.fixed_s = 0.085
    machine.run(60)
    for _ in range(10):
        machine.run(30)
        assert machine.size.limit >= 3
        assert machine.step_s(machine.size.limit) <= 1.25 * 0.12 + 0.02


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("fixed_s", [0.09, 0.1, 0.11, 0.115])
def test_where_one_row_alone_nearly_takes_the_target_a_few_are_kept(
    fixed_s: float, noise: float
) -> None:
    """With one of them a step would be a tenth shorter, and most of the throughput lost."""
    machine = _machine(fixed_s, 0.004, 8, noise)
    machine.run(60)
    for _ in range(5):
        began_at = machine.now
        machine.run(60)
        assert machine.size.limit >= 2
        assert machine.step_s(machine.size.limit) <= 1.2 * 0.12 + 0.004
        assert machine.changes_since(began_at) <= 10


def test_who_comes_to_an_idle_machine_takes_no_step_of_a_full_batch() -> None:
    machine = _machine(0.02, 0.002)
    assert machine.size.step_s(1) == 0
    for clients in (2, 9, _MOST):
        machine.run(20, clients)
    for rows in (1, 16, _MOST):
        assert machine.size.step_s(rows) == pytest.approx(machine.step_s(rows), rel=0.35)


def test_while_rows_never_changed_a_step_is_as_long_as_it_was() -> None:
    size = AdaptiveBatchSize(AdaptiveBatching(), 1, _MOST)
    for number in range(3):
        size.stepped(0.05, 2, 0, float(number))
    assert size.step_s(1) == size.step_s(8) == pytest.approx(0.05)
