"""How many rows decode at once, on machines whose costs are simulated: a step takes so long for so
many rows and so many tokens in their caches, more or less, and now and then much longer."""

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shared.settings.worker import AdaptiveBatchingSettings
from worker.engine.adaptive_batch_size import AdaptiveBatchSize

Device = Callable[[int, int], float]
"""The seconds of a step, of rows and the tokens that they attend to."""

SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])
CLIENTS = 300
STALL_S = 0.5


@dataclass
class Row:
    """A request: tokens in its cache, and those it will still get; its prompt took `prompt_s`."""

    context: int
    left: int
    answer: int
    prompt_s: float


@dataclass
class Machine:
    """Serves requests, as many at once as the limit allows, and prefills between its steps.

    Attributes:
        fixed: the rows, whatever the limit says.
        prefill_tokens_per_s: 0 where prompts take no time.
        rounds: of each step the time of its end, rows, and seconds with the prefill before it.
    """

    device: Device
    size: AdaptiveBatchSize
    seed: int = 1
    noise: float = 0.1
    fixed: int | None = None
    prefill_tokens_per_s: float = 0.0
    prompts: tuple[int, int] = (50, 400)
    answers: tuple[int, int] = (20, 300)
    now: float = 0.0
    rounds: list[tuple[float, int, float]] = field(default_factory=list)
    _rows: list[Row] = field(default_factory=list)
    _coming: Row | None = None
    _coming_s: float = 0.0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def run(self, seconds: float, clients: int = CLIENTS) -> "Machine":
        until = self.now + seconds
        while self.now < until:
            prefill_s = self._prefill(min(self.fixed or self.size.limit, clients))
            self.now += prefill_s
            if self._rows:
                self._step(prefill_s, clients)
        return self

    def _prefill(self, most: int) -> float:
        spent = 0.0
        while spent < STALL_S and (self._coming or len(self._rows) < most):
            if self._coming is None:
                tokens = self._chance.randint(*self.prompts)
                rate, answer = self.prefill_tokens_per_s, self._chance.randint(*self.answers)
                self._coming_s = tokens / rate if rate else 0.0
                self._coming = Row(tokens, answer, answer, self._coming_s)
            took_s = min(STALL_S - spent, self._coming_s)
            self._coming_s -= took_s
            spent += took_s
            if self._coming_s <= 1e-9:
                self._rows.append(self._coming)
                self._coming = None
        return spent

    def _step(self, prefill_s: float, clients: int) -> None:
        rows = len(self._rows)
        took_s = self.step_s(rows) * self._chance.uniform(1 - self.noise, 1 + self.noise)
        if self.noise and self._chance.random() < 0.01:
            took_s *= self._chance.uniform(2, 5)
        self.now += took_s
        self.size.record_step(took_s, rows, max(0, clients - rows), self.now)
        for row in self._rows:
            row.context += 1
            row.left -= 1
            if not row.left:
                self.size.typical_request.record(row.prompt_s, row.answer)
        self._rows = [row for row in self._rows if row.left]
        self.rounds.append((self.now, rows, took_s + prefill_s))

    def step_s(self, rows: int) -> float:
        """Without noise, with the texts that are there now."""
        return self.device(rows, sum(row.context for row in self._rows))

    # What came of it.

    def tokens_per_s(self, since: float) -> float:
        rounds = [one for one in self.rounds if one[0] > since]
        return sum(rows for _, rows, _ in rounds) / sum(took_s for _, _, took_s in rounds)

    def changes_since(self, when: float) -> int:
        return sum(change.at >= when for change in self.size.changes)


def sized(most: int = 32, start: int = 8, least: int = 1, **how: Any) -> AdaptiveBatchSize:
    return AdaptiveBatchSize(AdaptiveBatchingSettings(**how), least, most, start)


def line(fixed_s: float, each_s: float) -> Device:
    return lambda rows, _: fixed_s + each_s * rows


# What is bought: devices whose costs are like Macs'.

DEVICES: dict[str, Device] = {
    "25 ms and 0.4 a row": line(0.025, 0.0004),
    "120 ms and 1 a row": line(0.12, 0.001),
    "3 ms and 0.3 a row": line(0.003, 0.0003),
    "saturates at 31 rows": lambda rows, _: max(0.025, 0.0008 * rows),
    "costs that grow with the texts": lambda rows, tokens: 0.025 + 0.0002 * rows + 1e-6 * tokens,
}
MOST = 256


def best_fixed(device: Device, prefill_tokens_per_s: float) -> int:
    """Counted up: the last row adds a hundredth, and the gap stays within the bounds."""
    context, (shortest, longest), (fewest, most) = 300, (50, 400), (20, 300)
    prompt_s = (shortest + longest) / 2 / prefill_tokens_per_s if prefill_tokens_per_s else 0.0
    share_s = prompt_s / ((fewest + most) / 2)

    def gap_s(rows: int) -> float:
        return device(rows, context * rows) + share_s * rows

    bound_s = max(0.1, 4 * gap_s(1))
    rows = 1
    while rows < MOST and gap_s(rows + 1) <= bound_s:
        if (rows + 1) / rows * device(rows, context * rows) / device(
            rows + 1, context * (rows + 1)
        ) < 1.01:
            break
        rows += 1
    return rows


@SEEDS
@pytest.mark.parametrize("prefill_tokens_per_s", [0.0, 2000.0])
@pytest.mark.parametrize("name", DEVICES)
def test_within_20_s_it_is_as_good_as_the_best_fixed_size_and_stays(
    name: str, prefill_tokens_per_s: float, seed: int
) -> None:
    device = DEVICES[name]
    machine = Machine(device, sized(MOST), seed, prefill_tokens_per_s=prefill_tokens_per_s).run(120)
    fixed = Machine(
        device, sized(MOST), seed, prefill_tokens_per_s=prefill_tokens_per_s,
        fixed=best_fixed(device, prefill_tokens_per_s),
    ).run(120)  # fmt: skip
    assert machine.tokens_per_s(since=20) >= 0.95 * fixed.tokens_per_s(since=20)
    swings = [
        abs(change.after - change.before) / change.before
        for change in machine.size.changes
        if change.at > 40
    ]
    assert max(swings, default=0.0) <= 0.05


def test_a_target_that_one_row_does_not_reach_keeps_nobody_out() -> None:
    """As with large models: one row takes 120 ms, thirty take a quarter more."""
    machine = Machine(DEVICES["120 ms and 1 a row"], sized()).run(30)
    assert machine.size.limit == 32


def test_a_gap_grows_no_longer_than_some_times_that_of_one_row() -> None:
    machine = Machine(line(0.05, 0.05), sized()).run(60)
    assert machine.size.limit == pytest.approx(7, abs=2)  # 0.4 s, four times 0.1
    machine = Machine(line(0.05, 0.05), sized(slowdown_limit=2)).run(60)
    assert machine.size.limit == pytest.approx(3, abs=1)


def test_for_throughput_a_gap_may_be_as_long_as_it_likes() -> None:
    machine = Machine(line(0.5, 0.01), sized(objective="throughput")).run(200)
    assert machine.size.limit == 32


@SEEDS
def test_for_throughput_rows_are_added_that_are_worth_less_each(seed: int) -> None:
    """From 54 rows on each adds less than a hundredth: 250 give half as many tokens/s again."""
    machine = Machine(DEVICES["25 ms and 0.4 a row"], sized(MOST, objective="throughput"), seed)
    assert machine.run(60).size.limit >= 240
    few = Machine(DEVICES["3 ms and 0.3 a row"], sized(MOST, objective="throughput"), seed)
    assert few.run(20).size.limit <= 200  # hardly any of the last ones added a thing


def test_prefill_between_steps_counts_as_a_gap() -> None:
    """A row brings a prompt of half a second for its 20 tokens."""
    slow = Machine(
        line(0.02, 0.001), sized(), prefill_tokens_per_s=200, prompts=(100, 100), answers=(20, 20)
    ).run(120)
    fast = Machine(line(0.02, 0.001), sized(), answers=(20, 20)).run(120)
    assert slow.size.limit <= 8 < fast.size.limit


# The target, where it is to be kept at any price.

MACHINES = [(0.05, 0.005), (0.02, 0.01), (0.08, 0.0005), (0.01, 0.03), (0.03, 0.06)]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("start", [1, 32])
@pytest.mark.parametrize(("fixed_s", "each_s"), MACHINES)
def test_the_target_is_found_from_both_sides_and_kept(
    fixed_s: float, each_s: float, start: int, noise: float
) -> None:
    size = sized(start=start, objective="latency")
    machine = Machine(line(fixed_s, each_s), size, noise=noise, answers=(1, 48)).run(30)
    for _ in range(5):
        began_at = machine.now
        machine.run(60)
        assert machine.changes_since(began_at) <= 10
        assert 0.08 <= machine.step_s(size.limit) <= 0.12 + 1e-9


def test_what_is_far_too_slow_goes_by_halves() -> None:
    machine = Machine(line(0.0, 0.02), sized(start=32, objective="latency")).run(5)
    (first, *_) = machine.size.changes
    assert (first.before, first.after, first.reason) == (32, 16, "slow")


def test_rows_that_make_no_step_longer_stay_where_the_target_is_out_of_reach() -> None:
    for start in (1, 32):
        machine = Machine(line(0.19, 0.0002), sized(start=start, objective="latency")).run(120)
        assert machine.size.limit == 32
    machine = Machine(line(0.2, 0.02), sized(objective="latency")).run(120)
    assert machine.size.limit <= 4


# In general.


@pytest.mark.parametrize("objective", ["balanced", "latency"])
def test_it_tries_no_more_rows_while_nobody_waits(objective: str) -> None:
    machine = Machine(line(0.005, 0.0005), sized(start=4, objective=objective))
    machine.run(30, clients=4)
    assert machine.size.limit == 4
    machine.run(30, clients=3)
    assert not machine.size.changes


def test_a_slower_machine_has_fewer_rows_and_gets_them_back() -> None:
    each_s = [0.008]

    def device(rows: int, _: int) -> float:
        return 0.02 + each_s[0] * rows

    machine = Machine(device, sized(objective="latency")).run(60)
    settled = machine.size.limit
    each_s[0] *= 2
    machine.run(60)
    assert machine.size.limit < settled and machine.step_s(machine.size.limit) <= 0.12
    each_s[0] /= 2
    machine.run(120)
    assert machine.size.limit == pytest.approx(settled, abs=1)


@SEEDS
@pytest.mark.parametrize("objective", ["balanced", "latency"])
def test_after_a_hiccup_of_the_machine_the_rows_come_back(objective: str, seed: int) -> None:
    pause = [1.0]

    def device(rows: int, _: int) -> float:
        return pause[0] * (0.03 + 0.002 * rows)

    machine = Machine(device, sized(objective=objective), seed).run(40)
    settled = machine.size.limit
    pause[0] = 6.0
    machine.run(5)
    pause[0] = 1.0
    machine.run(60)
    assert machine.size.limit >= settled - 2


def test_nothing_is_judged_until_the_rows_that_are_too_many_have_left() -> None:
    size = sized(start=32, objective="latency")
    for number in range(5):
        size.record_step(0.5, 32, 0, number)
    assert size.limit == 16
    for number in range(100):
        size.record_step(0.5, 17 + number % 10, 0, 10.0 + number)
    assert size.limit == 16


def test_stability_is_the_share_of_judgements_that_changed_nothing() -> None:
    size = sized(start=31, objective="throughput")
    assert size.stability == 1.0
    for number in range(5):
        size.record_step(0.01, 31, 1, number)
    assert (size.limit, size.stability) == (32, 0.0)
    for number in range(15):
        size.record_step(0.01, 32, 1, 20.0 + number)
    assert size.stability == 0.75


def test_the_limit_keeps_to_its_bounds_whatever_comes() -> None:
    chance = random.Random(7)
    size = sized(9, 100, 3)
    assert size.limit == 9
    for number in range(5000):
        rows, took_s = chance.randint(1, 9), chance.choice([0.001, 0.1, 10.0])
        size.record_step(took_s, rows, 1, number / 10)
        size.typical_request.record(chance.choice([0.0, 5.0]), chance.randint(0, 50))
        assert 3 <= size.limit <= 9


def test_a_step_is_foretold_for_any_number_of_rows() -> None:
    machine = Machine(line(0.02, 0.002), sized())
    assert machine.size.step_s(1) == 0
    for clients in (2, 9, 32):
        machine.run(20, clients)
    for rows in (1, 16, 32):
        assert machine.size.step_s(rows) == pytest.approx(0.02 + 0.002 * rows, rel=0.25)


@SEEDS
def test_one_noisy_step_says_little_of_an_idle_machine(seed: int) -> None:
    """It would be left out by who routes requests, and so never be measured again."""
    machine = Machine(line(0.002, 0.0001), sized(), seed).run(5, clients=1)
    usual_s = machine.size.step_s(1)
    machine.size.record_step(25 * usual_s, 1, 0, machine.now)
    assert machine.size.step_s(1) <= 1.5 * usual_s
    assert statistics.median(took_s for *_, took_s in machine.rounds) < 2 * usual_s
