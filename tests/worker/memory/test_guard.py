"""What is refused, unloaded and given back as memory gets short.

The engines are simulated, and so is what the worker's own process takes: the process of the tests
grows with all that ran in it before.
"""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from shared.messages.base import PRIORITIES
from shared.messages.worker_report import MemoryPressure
from shared.settings.worker import ResourceLimitsSettings
from tests.worker.engine_owner import owned_engine
from tests.worker.recording_engine import RecordingEngine
from tests.worker.virtual_time import Clock
from worker.host.process_usage import footprint_bytes
from worker.link.facts import EngineMeasured, EngineStarted
from worker.link.orders import LimitKVCaches
from worker.memory.guard import MemoryGuard

GB = 10**9
_SOFT_GB, _HARD_GB = 100, 200
_PROCESS_GB = 5
"""What the worker's own process takes."""


class Guarded:
    """A guard of some engines, and the models that could go."""

    def __init__(self, *, engines: int = 1, models: int = 0, **settings: Any) -> None:
        limits = {
            "max_memory_mb": 1000 * _SOFT_GB,
            "critical_memory_mb": 1000 * _HARD_GB,
            **settings,
        }
        self.engines = [RecordingEngine(index) for index in range(engines)]
        self.models = models
        self.asked = 0
        self.guard = MemoryGuard(ResourceLimitsSettings.model_validate(limits), self.engines)

    def holds(self, own_gb: float, *, kv_gb: float = 0, spare_gb: float = 0) -> None:
        """The engines say so, each of its part; it is looked at and acted upon."""
        share = GB / len(self.engines)
        for engine in self.engines:
            engine.measures(
                active_bytes=int((own_gb - spare_gb) * share),
                spare_bytes=int(spare_gb * share),
                kv_bytes=int(kv_gb * share),
            )
        self.look()

    def look(self) -> None:
        self.guard.check()
        self.guard.relieve(self._evict)

    def _evict(self) -> bool:
        self.asked += 1
        self.models -= 1
        return self.models >= 0

    def told(self, index: int = 0) -> list[LimitKVCaches]:
        """The orders since it was last asked."""
        engine = self.engines[index]
        orders = [order for order in engine.orders if isinstance(order, LimitKVCaches)]
        assert len(orders) == len(engine.orders)
        engine.orders.clear()
        return orders

    @property
    def refuses(self) -> list[str]:
        return [level for level in PRIORITIES if self.guard.refusal(level)]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with more memory than anything here asks for."""
    memory = SimpleNamespace(total=2000 * GB, available=1000 * GB)
    monkeypatch.setattr(
        "worker.memory.guard.psutil", SimpleNamespace(virtual_memory=lambda: memory)
    )
    monkeypatch.setattr("worker.memory.guard.footprint_bytes", _footprint_bytes)


def _footprint_bytes(pids: list[int]) -> int:
    """Of the worker's own process as it is simulated, of others as it is."""
    return _PROCESS_GB * GB if pids == [os.getpid()] else footprint_bytes(pids)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("worker.memory.guard.time", SimpleNamespace(monotonic=clock))
    return clock


# Pressure and refusals.


@pytest.mark.parametrize(
    ("own_gb", "pressure", "refused"),
    [
        (50, "none", []),
        (150, "soft", ["low"]),
        (250, "hard", ["high", "medium", "low"]),
    ],
)
def test_the_more_is_held_the_more_is_refused(
    own_gb: float, pressure: MemoryPressure, refused: list[str]
) -> None:
    worker = Guarded()
    worker.holds(own_gb)
    assert worker.guard.pressure == pressure
    assert worker.refuses == refused
    assert worker.guard.status().refusals == len(refused)


def test_a_refusal_says_what_is_held_and_what_the_limits_are() -> None:
    worker = Guarded()
    worker.holds(150)
    reason = worker.guard.refusal("low")
    assert reason is not None
    assert "low priority" in reason and "100.00 GB (soft)" in reason and "200.00 GB" in reason


def test_pressure_goes_when_enough_was_given_back(caplog: pytest.LogCaptureFixture) -> None:
    worker, seen = Guarded(), []
    for own_gb in (50, 150, 250, 150, 50, 50):
        worker.holds(own_gb)
        seen.append(worker.guard.pressure)
    assert seen == ["none", "soft", "hard", "soft", "none", "none"]
    assert len(caplog.records) == 4, "each change is said once"


def test_a_device_with_less_memory_than_was_configured_lowers_the_limits() -> None:
    worker = Guarded()
    worker.engines[0].started = EngineStarted("", "metal", "", 1, 80 * GB, {})
    worker.holds(75)
    status = worker.guard.status()
    assert (status.hard_bytes, status.soft_bytes) == (80 * GB, 80 * GB)
    worker.holds(85)
    assert worker.guard.pressure == "hard"


def test_all_engines_count_together() -> None:
    worker = Guarded(engines=3)
    worker.holds(150)
    assert worker.guard.pressure == "soft"


@pytest.mark.anyio
async def test_what_a_dead_engine_held_does_not_count() -> None:
    async with owned_engine(startup_timeout_ms=1, max_restarts=0) as owner:
        owner.process.measured = EngineMeasured(1, 100 * GB, 50 * GB, 20 * GB, 0, 0, 0.0)
        await owner.wait(lambda: len(owner.losses) == 1)
        guard = MemoryGuard(ResourceLimitsSettings(), [owner.process])
        guard.check()
        assert guard.status().own_bytes == _PROCESS_GB * GB


# Models.


def test_models_go_one_at_a_time_and_only_while_memory_is_short(clock: Clock) -> None:
    worker = Guarded(models=3)
    worker.holds(50)
    assert worker.asked == 0
    worker.holds(150)
    assert worker.asked == 0, "it may pass"
    clock.now += 1.1
    worker.look()
    assert worker.asked == 1
    clock.now += 1.9
    worker.look()
    assert worker.asked == 1, "what it gives back is not seen yet"
    clock.now += 0.2
    worker.look()
    assert worker.asked == 2
    clock.now += 2.1
    worker.holds(50)
    assert worker.asked == 2
    assert worker.guard.status().evictions == 2


def test_a_short_peak_lets_no_model_go_unless_it_is_above_the_hard_limit(clock: Clock) -> None:
    worker = Guarded(models=3)
    for own_gb in (50, 150, 50, 150, 50, 150):
        worker.holds(own_gb)
        clock.now += 0.9
    assert worker.asked == 0
    worker.holds(250)
    assert worker.asked == 1


def test_where_no_model_can_go_it_is_asked_again_at_once(clock: Clock) -> None:
    worker = Guarded(models=0)
    worker.holds(250)
    worker.models = 1
    worker.look()
    assert worker.asked == 2
    worker.look()
    assert worker.asked == 2
    assert worker.guard.status().evictions == 1


# What engines are told.


def _kv_gb(orders: list[LimitKVCaches]) -> float:
    """The only order's limit."""
    (order,) = orders
    assert order.kv_bytes is not None
    return order.kv_bytes / GB


def test_an_engine_is_told_its_limit_once_and_again_when_that_has_changed(clock: Clock) -> None:
    worker = Guarded()
    worker.holds(50, kv_gb=20)
    # Up to 150 GB, less the 30 GB that are no KV caches, and what the process takes.
    assert _kv_gb(worker.told()) == 120 - _PROCESS_GB
    worker.look()
    worker.holds(50.5, kv_gb=20)
    assert worker.told() == []
    worker.holds(60, kv_gb=20)
    assert _kv_gb(worker.told()) == 110 - _PROCESS_GB
    worker.holds(50, kv_gb=20)
    assert len(worker.told()) == 1


def test_two_engines_share_what_is_free(clock: Clock) -> None:
    worker = Guarded(engines=2)
    worker.holds(50, kv_gb=20)
    first, second = (_kv_gb(worker.told(index)) for index in range(2))
    assert first == second
    assert first + second == 120 - _PROCESS_GB


def test_only_engines_that_run_are_told_and_new_ones_as_soon_as_they_do(clock: Clock) -> None:
    worker = Guarded(engines=2)
    worker.engines[1].state = "restarting"
    worker.holds(50, kv_gb=20)
    assert (len(worker.told(0)), worker.told(1)) == (1, [])
    worker.engines[1].state, worker.engines[1].life = "running", 1
    worker.look()
    assert len(worker.told(1)) == 1


def test_a_restarted_engine_is_told_what_its_predecessor_was_told(clock: Clock) -> None:
    worker = Guarded()
    worker.holds(50)
    told = worker.told()
    worker.engines[0].life += 1
    worker.look()
    assert _kv_gb(worker.told()) == pytest.approx(_kv_gb(told), rel=0.02)


def test_under_pressure_engines_give_back_what_they_keep_but_not_all_the_time(
    clock: Clock,
) -> None:
    worker = Guarded()
    worker.holds(150, kv_gb=20)
    assert [order.release_cached_memory for order in worker.told()] == [True]
    clock.now += 1.9
    worker.look()
    assert worker.told() == []
    clock.now += 0.2
    worker.look()
    assert [order.release_cached_memory for order in worker.told()] == [True]
    clock.now += 10
    worker.holds(50, kv_gb=20)
    assert [order.release_cached_memory for order in worker.told()] == [False]


def test_above_all_limits_kv_caches_may_take_less_than_they_do(clock: Clock) -> None:
    worker = Guarded()
    worker.holds(210, kv_gb=100)
    assert _kv_gb(worker.told()) == 40 - _PROCESS_GB
    worker.holds(400, kv_gb=100)
    assert _kv_gb(worker.told()) == 0


# What it says.


def test_a_status_has_what_is_held_and_what_the_limits_are() -> None:
    worker = Guarded(engines=2)
    worker.holds(50, spare_gb=10)
    status = worker.guard.status()
    assert status.own_bytes == (50 + _PROCESS_GB) * GB
    assert (status.soft_bytes, status.hard_bytes) == (_SOFT_GB * GB, _HARD_GB * GB)
    assert status.available_bytes == 1000 * GB
    assert (status.pressure, status.evictions, status.refusals) == ("none", 0, 0)
    # Free is what is below the soft limit, with what engines keep for later.
    assert worker.guard.free_bytes == _SOFT_GB * GB - status.own_bytes + 10 * GB


def test_too_much_that_is_held_is_less_than_nothing_that_is_free() -> None:
    worker = Guarded()
    worker.holds(150)
    assert worker.guard.free_bytes == -(50 + _PROCESS_GB) * GB


def test_switched_off_it_refuses_evicts_and_orders_nothing(clock: Clock) -> None:
    worker = Guarded(models=1, enabled=False)
    worker.holds(50)
    assert worker.guard.free_bytes > 0
    worker.holds(250, kv_gb=20)
    assert (worker.guard.pressure, worker.refuses, worker.asked, worker.told()) == (
        "none", [], 0, [],
    )  # fmt: skip
    assert worker.guard.free_bytes > 0
    assert worker.guard.status().own_bytes > 250 * GB
