"""What is bad enough to go back, and what is not."""

from typing import Any

import pytest

from controller.rollout.gates import find_violation
from controller.rollout.worker_metrics import PeriodMetrics
from shared.ids import WorkerId
from shared.messages.rollout import Baseline, SpeedAtLoad
from shared.settings.controller import RolloutGatesSettings
from tests.controller.rollout.reports import report

W1, W2 = WorkerId("w1"), WorkerId("w2")
SPEEDS = [SpeedAtLoad(level=3, tokens_per_s=100)]
BEFORE = Baseline(error_share=0.05, speeds={W1: SPEEDS, W2: SPEEDS})


def fault(
    *moments: list[Any],
    gates: RolloutGatesSettings | None = None,
    whole: bool = True,
    failovers_ms: dict[WorkerId, float] | None = None,
    open_breakers: tuple[WorkerId, ...] = (),
    step_s: float = 1.0,
    baseline: Baseline = BEFORE,
) -> str | None:
    """What is found at w1 after these reports, a second apart."""
    metrics = PeriodMetrics(1000.0)
    for number, reports in enumerate(moments):
        at = 1000.0 + number * step_s
        metrics.add(reports, at, open_breakers=open_breakers, failovers_ms=failovers_ms)
    at = 1000.0 + len(moments) * step_s
    return find_violation(
        gates or RolloutGatesSettings(), baseline, metrics, [W1], at=at, complete=whole
    )


def busy(speeds: list[float], others: list[float] | None = None) -> list[list[Any]]:
    others = others or [100.0] * len(speeds)
    return [
        [report("w1", tokens_per_s=own, active=4), report("w2", tokens_per_s=other, active=4)]
        for own, other in zip(speeds, others, strict=True)
    ]


def test_as_before_is_good() -> None:
    assert fault(*busy([101, 99, 100, 98, 102, 100])) is None
    assert fault([report()]) is None
    assert fault() is None


@pytest.mark.parametrize(
    ("counts", "bad"),
    [
        ({"completed": 17, "failed": 3}, False),  # 15 %: 10 more than before
        ({"completed": 16, "failed": 4}, True),
        ({"completed": 16, "rejected": 4}, True),
        ({"completed": 16, "memory_refusals": 4}, True),
        ({"completed": 0, "failed": 4}, False),  # too few to say
        ({"completed": 0, "failed": 5}, True),
    ],
)
def test_more_errors(counts: dict[str, Any], bad: bool) -> None:
    found = fault([report(completed=0)], [report(**counts)])
    assert (found is not None) == bad
    if found is not None:
        assert "failed or were refused at w1, 5% before" in found


def test_only_what_ended_meanwhile_counts_and_only_there() -> None:
    old = report("w1", completed=10, failed=100)
    assert fault([old], [old.model_copy(update={"completed_requests": 20})]) is None
    other = [report("w2", failed=0)], [report("w2", failed=50)]
    assert fault([report("w1"), *other[0]], [report("w1"), *other[1]]) is None


def test_a_worker_or_engine_that_ends() -> None:
    assert fault([report()], [report(boot="b2")]) == "worker w1 ended while it was watched"
    found = fault([report(engine_restarts=1)], [report(engine_restarts=2)])
    assert found == "an engine of w1 ended while it was watched"
    assert fault([report(engine_restarts=2)], [report(engine_restarts=2)]) is None
    assert fault([report("w2")], [report("w2", boot="b2")]) is None


def test_memory_above_the_soft_limit() -> None:
    assert fault([report(pressure="soft")]) == "w1 is above its soft memory limit"
    assert fault([report(pressure="soft")], [report()]) is None  # no more
    off = RolloutGatesSettings(soft_memory=False)
    assert fault([report(pressure="hard")], gates=off) is None


def test_a_breaker_that_stays_open() -> None:
    gates = RolloutGatesSettings(breaker_open_s=2)
    assert fault(*[[report()]] * 3, open_breakers=(W1,), gates=gates) is None
    found = fault(*[[report()]] * 4, open_breakers=(W1,), gates=gates)
    assert found == "the circuit breaker of w1 was open for 3 s"
    assert fault(*[[report()]] * 9, open_breakers=(W2,), gates=gates) is None


def test_a_slow_failover() -> None:
    assert fault([report()], failovers_ms={W1: 1000.0}) is None
    assert fault([report()], failovers_ms={W2: 5000.0}) is None
    found = fault([report()], failovers_ms={W1: 1001.0})
    assert found == "a request of w1 took 1001 ms to migrate"


def test_a_batch_size_that_keeps_changing() -> None:
    eleven = tuple(0.1 * number for number in range(11))
    assert fault(*[[report(changes_ago_s=eleven[:10])]] * 3) is None
    found = fault(*[[report(changes_ago_s=eleven)]] * 3)
    assert found == "the batch size of w1 changed 11 times a minute"
    before = tuple(100.0 + number for number in range(20))
    assert fault(*[[report(changes_ago_s=before)]] * 3) is None


def test_less_throughput_is_judged_at_the_end() -> None:
    slow = busy([80, 81, 79, 80, 80, 81])
    assert fault(*slow) == "w1 reaches 80% of the tokens/s of before"
    assert fault(*slow, whole=False) is None
    assert fault(*slow, gates=RolloutGatesSettings(throughput=None)) is None
    assert fault(*busy([96, 97, 96, 97, 96, 97])) is None


def test_what_slows_all_down_is_not_the_versions() -> None:
    assert fault(*busy([50] * 6, others=[50] * 6)) is None
    found = fault(*busy([40] * 6, others=[50] * 6))
    assert found == "w1 reaches 40% of the tokens/s of before, 50% at the others"


def test_it_is_compared_with_as_many_requests() -> None:
    speeds = [SpeedAtLoad(level=1, tokens_per_s=20), SpeedAtLoad(level=3, tokens_per_s=100)]
    before = Baseline(speeds={W1: speeds})
    alone = [[report(tokens_per_s=20, active=1)]] * 6
    assert fault(*alone, baseline=before) is None
    assert fault(*[[report(tokens_per_s=20, active=7)]] * 6, baseline=before) is not None
    assert fault(*[[report(tokens_per_s=20, active=8)]] * 6, baseline=before) is None  # unknown


def test_chance_and_silence_are_not_less_throughput() -> None:
    assert fault(*busy([0, 200, 10, 190, 20, 120])) is None  # 90 on average, of anything
    assert fault(*busy([50] * 4)) is None  # too short
    assert fault(*[[report(tokens_per_s=0, active=0)]] * 9) is None
