"""How many engines a model is loaded into, as far as memory allows."""

from typing import cast

import pytest

from shared.errors import ModelError, Unavailable
from shared.ids import ModelId
from shared.settings.models import ModelSettings
from worker.memory.guard import MemoryGuard
from worker.memory.limits import affordable_copies
from worker.models.eviction import idle_models
from worker.models.memory_capacity import ModelMemoryManager
from worker.models.worker_models import WorkerModel

pytestmark = pytest.mark.anyio

GB = 10**9


class Memory:
    """What a guard says, without a machine."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.free_bytes = max_bytes
        self.went: list[WorkerModel] = []

    def check(self) -> None:
        pass

    def refused(self) -> None:
        pass

    def evicted(self) -> None:
        pass

    def load(self, model: WorkerModel, copies: int) -> None:
        model.state, model.placed = "warm", set(range(copies))
        self.free_bytes -= model.held_bytes

    def unload(self, model: WorkerModel) -> None:
        self.went.append(model)
        self.free_bytes += model.held_bytes
        model.state, model.placed = "available", set()


def room(
    memory: Memory, *models: WorkerModel, engines: int = 4, allow_fewer_copies: bool = True
) -> ModelMemoryManager:
    return ModelMemoryManager(
        cast(MemoryGuard, memory),
        engines=range(engines),
        allow_fewer_copies=allow_fewer_copies,
        eviction=True,
        idle=lambda: idle_models(models, []),
        unload=memory.unload,
    )


def of(size_bytes: int, name: str = "m") -> WorkerModel:
    return WorkerModel(ModelId(name), ModelSettings(path=name), size_bytes=size_bytes)


@pytest.mark.parametrize(
    ("size_gb", "copies"), [(1, 4), (1.9, 3), (3, 2), (4, 1), (9, 1)]
)  # of 10 GB: the copies beyond the first take half of the rest
async def test_a_model_has_as_many_copies_as_leave_half_of_the_rest(
    size_gb: float, copies: int
) -> None:
    assert await room(Memory(10 * GB)).reserve(of(int(size_gb * GB))) == copies


async def test_where_the_number_is_set_all_engines_hold_it_or_none() -> None:
    fixed = room(Memory(10 * GB), allow_fewer_copies=False)
    assert await fixed.reserve(of(2 * GB)) == 4
    with pytest.raises(Unavailable, match="in 4 engines"):
        fixed.check(of(3 * GB))
    with pytest.raises(ModelError, match="in 4 engines"):
        fixed.check_maximum(of(3 * GB), 3 * GB)
    room(Memory(10 * GB)).check_maximum(of(3 * GB), 3 * GB)


async def test_idle_models_go_for_the_first_copy_alone_and_with_all_of_theirs() -> None:
    memory = Memory(10 * GB)
    idle = of(2 * GB, "idle")
    memory.load(idle, copies=3)
    assert await room(memory, idle).reserve(of(3 * GB)) == 1, "there is room for one"
    assert memory.went == []
    memory = Memory(10 * GB)
    memory.load(idle, copies=3)
    assert await room(memory, idle).reserve(of(8 * GB)) == 1
    assert memory.went == [idle]


@pytest.mark.parametrize(
    ("free", "copy", "copies"), [(0, 1, 1), (10, 20, 1), (3, 1, 2), (100, 1, 8)]
)
def test_there_is_one_copy_at_least_and_one_in_each_engine_at_most(
    free: int, copy: int, copies: int
) -> None:
    assert affordable_copies(free, copy, 8) == copies
