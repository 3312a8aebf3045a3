"""How many engines a worker runs, and with how many threads each."""

from collections import Counter
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.settings import ClusterSettings
from shared.settings.worker import EnginesSettings
from tests.worker.recording_engine import RecordingEngine
from worker.agent import engine_count as plans
from worker.agent.engine_count import decide, engine_count
from worker.engine_process.blas_threads import BlasThreadAllocator, shares
from worker.engine_process.process import EngineProcess
from worker.link.orders import SetBlasThreads

GB = 10**9


def planned(
    count: int | Literal["auto"] = "auto",
    *,
    accelerator: str = "",
    cores: int = 8,
    weight_bytes: int | None = GB,
    later_bytes: int = 0,
    soft_bytes: int = 100 * GB,
) -> tuple[int, str]:
    plan = decide(
        EnginesSettings(count=count),
        accelerator=accelerator,
        cores=cores,
        weight_bytes=weight_bytes,
        later_bytes=later_bytes,
        soft_bytes=soft_bytes,
    )
    return plan.count, plan.why


def test_what_is_set_holds_on_any_machine() -> None:
    assert planned(3, accelerator="metal", soft_bytes=0) == (3, "set by worker.engines.count")


@pytest.mark.parametrize("accelerator", ["metal", "cuda"])
def test_a_gpu_has_one(accelerator: str) -> None:
    count, why = planned(accelerator=accelerator)
    assert count == 1 and "GPU" in why


def test_without_a_gpu_there_is_one_for_each_core() -> None:
    assert planned(cores=1)[0] == 1
    assert planned(cores=8) == (8, "one per core, as there is no GPU")


def test_copies_beyond_the_first_take_half_of_what_it_leaves() -> None:
    count, why = planned(weight_bytes=GB, soft_bytes=10 * GB)
    assert count == 1 + int((10 - 1.15) / 2 / 1.15)
    assert "8 cores" in why and "1.15 GB each" in why and "10.00 GB" in why
    assert planned(weight_bytes=6 * GB, soft_bytes=10 * GB)[0] == 1
    assert planned(weight_bytes=60 * GB, soft_bytes=10 * GB)[0] == 1


def test_a_model_that_may_be_loaded_later_still_fits() -> None:
    assert planned(soft_bytes=10 * GB, later_bytes=6 * GB)[0] == 3
    assert planned(soft_bytes=10 * GB, later_bytes=20 * GB)[0] == 1


def test_where_a_size_is_unknown_there_is_one() -> None:
    count, why = planned(weight_bytes=None)
    assert count == 1 and "its size is unknown" in why


@given(
    cores=st.integers(1, 64),
    weight_bytes=st.integers(1, 200 * GB),
    soft_bytes=st.integers(0, 600 * GB),
)
def test_half_of_the_room_for_kv_caches_stays(
    cores: int, weight_bytes: int, soft_bytes: int
) -> None:
    count, _ = planned(cores=cores, weight_bytes=weight_bytes, soft_bytes=soft_bytes)
    assert 1 <= count <= cores
    room_of_one = soft_bytes - weight_bytes
    assert count == 1 or soft_bytes - count * weight_bytes >= room_of_one / 2


def test_the_models_to_be_warm_are_weighed_on_this_machine(
    tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "accelerator", lambda: "")
    monkeypatch.setattr(plans, "available_cores", lambda: 4)
    here = {"skills": {"chat": ["tiny"]}, "models": {"tiny": {"path": str(tiny_model)}}}
    assert engine_count(ClusterSettings.model_validate(here)).count == 4
    nowhere = {"skills": {"chat": ["a/b"]}}
    assert engine_count(ClusterSettings.model_validate(nowhere)).count == 1
    small = {**here, "worker": {"resource_limits": {"max_memory_mb": 200}}}
    assert engine_count(ClusterSettings.model_validate(small)).count == 1


def test_room_is_left_for_what_may_be_loaded_on_demand(tiny_model: Any) -> None:
    one = {"path": str(tiny_model)}
    here: Any = {"skills": {"chat": ["tiny", "other"]}, "models": {"tiny": one, "other": one}}
    settings = ClusterSettings.model_validate(here)
    assert plans._later_bytes(settings) > 0
    assert plans._later_bytes(settings) == plans._weight_bytes(settings)
    here["worker"] = {"model_loading": {"on_demand": False}}
    assert plans._later_bytes(ClusterSettings.model_validate(here)) == 0


# Threads.


@given(
    busy=st.lists(st.integers(0, 63), unique=True, max_size=64).map(sorted),
    cores=st.integers(1, 64),
)
def test_engines_with_work_share_the_cores(busy: list[int], cores: int) -> None:
    found = shares(busy, cores)
    assert list(found) == busy
    if 0 < len(busy) <= cores:
        assert sum(found.values()) == cores
    assert all(threads >= 1 for threads in found.values())
    assert not found or max(found.values()) - min(found.values()) <= 1


def told(engine: EngineProcess) -> list[int]:
    assert isinstance(engine, RecordingEngine)
    orders, engine.orders = engine.orders, []
    return [order.threads for order in orders if isinstance(order, SetBlasThreads)]


def test_an_engine_hears_of_its_threads_when_they_change_and_only_then() -> None:
    engines = [RecordingEngine(index) for index in range(2)]
    for engine in engines:
        engine.threads = 4
    sequences: Counter[int] = Counter()
    threads = BlasThreadAllocator(engines, 4)
    sequences[0] = 1
    threads.share(sequences)
    assert [told(engine) for engine in engines] == [[], []]
    sequences[1] = 3
    threads.share(sequences)
    assert [told(engine) for engine in engines] == [[2], [2]]
    sequences[0] = 2
    threads.share(sequences)
    assert [told(engine) for engine in engines] == [[], []]
    sequences[0] = 0
    threads.share(sequences)
    assert [told(engine) for engine in engines] == [[], [4]]
    sequences[1] = 0
    threads.share(sequences)
    assert [told(engine) for engine in engines] == [[], []]
    assert [engine.threads for engine in engines] == [2, 4]


def test_threads_that_are_set_stay() -> None:
    engine = RecordingEngine(0)
    BlasThreadAllocator([engine], None).share(Counter({0: 1}))
    assert told(engine) == []
