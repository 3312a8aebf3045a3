"""The line through the steps of a machine that is noisy, and that changes."""

import random

import pytest

from worker.engine.step_cost import StepCost


class Machine:
    """Steps of `fixed + each * rows` seconds, more or less; one of a hundred much longer."""

    def __init__(self, seed: int, noise: float = 0.1) -> None:
        self.fixed_s, self.each_s = 0.04, 0.002
        self._noise = noise
        self._chance = random.Random(seed)

    def step(self, rows: int) -> float:
        took_s = self.exact(rows) * self._chance.uniform(1 - self._noise, 1 + self._noise)
        return took_s * (5 if self._noise and self._chance.random() < 0.01 else 1)

    def exact(self, rows: int) -> float:
        return self.fixed_s + self.each_s * rows


def _run(cost: StepCost, machine: Machine, rows: list[int]) -> None:
    for count in rows:
        cost.record_step(count, machine.step(count))


def _ramp(most: int = 32, each: int = 8) -> list[int]:
    return [rows for rows in range(1, most + 1) for _ in range(each)]


SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])


def test_nothing_is_known_before_the_first_step() -> None:
    cost = StepCost()
    assert not cost.is_known
    cost.record_step(1, 0.1)
    assert cost.is_known


def test_without_noise_two_sizes_tell_the_line() -> None:
    cost, machine = StepCost(), Machine(1, noise=0)
    _run(cost, machine, [1, 2] * 40)
    assert cost.line.seconds(1) == pytest.approx(machine.exact(1), rel=0.01)
    assert cost.line.seconds(32) == pytest.approx(machine.exact(32), rel=0.1)


@SEEDS
def test_while_rows_come_the_line_is_found_through_noise(seed: int) -> None:
    cost, machine = StepCost(), Machine(seed)
    _run(cost, machine, _ramp())
    for rows in (1, 8, 32):
        assert cost.line.seconds(rows) == pytest.approx(machine.exact(rows), rel=0.2)
    assert cost.line.gain(32) == pytest.approx(
        33 / 32 * machine.exact(32) / machine.exact(33) - 1, abs=0.006
    )


@SEEDS
def test_an_hour_of_a_batch_that_never_changes_spoils_nothing(seed: int) -> None:
    cost, machine = StepCost(), Machine(seed)
    _run(cost, machine, _ramp())
    _run(cost, machine, [32] * 40_000)
    assert cost.line.seconds(32) == pytest.approx(machine.exact(32), rel=0.1)
    assert cost.line.seconds(1) == pytest.approx(machine.exact(1), rel=0.5)
    _run(cost, machine, [31, 32] * 50)
    assert cost.line.seconds(24) == pytest.approx(machine.exact(24), rel=0.15)


@SEEDS
def test_a_machine_that_gets_slower_is_slower_for_any_number_of_rows(seed: int) -> None:
    cost, machine = StepCost(), Machine(seed)
    _run(cost, machine, _ramp())
    machine.fixed_s, machine.each_s = 3 * machine.fixed_s, 3 * machine.each_s
    _run(cost, machine, [32] * 100)
    assert cost.line.seconds(32) == pytest.approx(machine.exact(32), rel=0.1)
    assert cost.line.seconds(1) == pytest.approx(machine.exact(1), rel=0.35)


@SEEDS
def test_one_pause_of_a_minute_hardly_moves_it(seed: int) -> None:
    cost, machine = StepCost(), Machine(seed)
    _run(cost, machine, _ramp())
    before = cost.line.seconds(32)
    cost.record_step(32, 60.0)
    assert cost.line.seconds(32) < 1.3 * before
    _run(cost, machine, [32] * 20)
    assert cost.line.seconds(32) == pytest.approx(machine.exact(32), rel=0.1)


def test_whatever_comes_it_says_a_finite_time_above_zero() -> None:
    chance, cost = random.Random(7), StepCost()
    for _ in range(20_000):
        cost.record_step(chance.randint(1, 256), 10 ** chance.uniform(-6, 2))
        for rows in (1, 256):
            assert 0 < cost.line.seconds(rows) < 1e6
