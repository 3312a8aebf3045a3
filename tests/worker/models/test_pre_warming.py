"""Models that are loaded before anybody asks for them: in which order, and how far they are.

Their states change by hand, as the loader would change them; time passes when all tasks wait.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from shared.ids import ModelId
from shared.messages.worker_report import PreWarmingStatus
from tests.worker.kept_models import TOO_LARGE_BYTES, KeptModels
from tests.worker.virtual_time import in_virtual_time
from worker.models.pre_warming import PreWarming

_PATIENCE_S = 30


class Warmed:
    """Models that are to be warmed: by default `a` (low), `b` (high) and `c` (medium)."""

    def __init__(self, *, has_engine: bool = True, **settings: Any) -> None:
        models = [("a", "low"), ("b", "high"), ("c", "medium")]
        named = [{"model": model, "priority": priority} for model, priority in models]
        pre_warming = {
            "models": named,
            "timeout_per_model_ms": 1000 * _PATIENCE_S,
            **settings,
        }
        self.models = KeptModels("other", "a", "b", "c", pre_warming=pre_warming)
        self.has_engine = has_engine
        self.begun: list[list[str]] = []  # what was loading when it began
        self.warming = PreWarming(self.models.settings, self.models.keeper, self.models.changes)

    @property
    def loading(self) -> list[str]:
        return self.models.of_state("loading")

    @property
    def status(self) -> PreWarmingStatus:
        return self.warming.status([])

    @property
    def counts(self) -> tuple[int, int, int]:
        """In all, completed and failed."""
        status = self.status
        return status.total, status.completed, status.failed

    async def run(self) -> None:
        await self.warming.run(lambda: self.has_engine, self._on_begin)

    async def warm(self, *names: str) -> None:
        self.models.warm(*names)
        await settled()

    async def fail(self, name: str) -> None:
        self.models.fail(name)
        await settled()

    async def _on_begin(self) -> None:
        self.begun.append(self.loading)


async def settled() -> None:
    """Return when all tasks wait."""
    await asyncio.sleep(1e-6)


@asynccontextmanager
async def running(warmed: Warmed) -> AsyncIterator[asyncio.Task[None]]:
    """It has gone as far as it can."""
    task = asyncio.create_task(warmed.run())
    await settled()
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# The order.


@in_virtual_time
async def test_one_is_loaded_after_another_by_priority() -> None:
    warmed = Warmed()
    async with running(warmed) as task:
        for model in ("b", "c", "a"):
            assert warmed.loading == [model]
            assert not task.done()
            await warmed.warm(model)
        assert task.done()
    assert warmed.models.of_state("available") == ["other"]
    assert warmed.counts == (3, 3, 0)


@in_virtual_time
async def test_told_to_it_loads_all_at_once() -> None:
    warmed = Warmed(parallel=True)
    async with running(warmed) as task:
        assert sorted(warmed.loading) == ["a", "b", "c"]
        await warmed.warm("c", "a")
        assert not task.done()
        await warmed.warm("b")
        assert task.done()


@in_virtual_time
async def test_nothing_is_loaded_before_an_engine_runs_and_others_were_told_that_it_begins() -> (
    None
):
    warmed = Warmed(has_engine=False)
    async with running(warmed):
        assert (warmed.loading, warmed.begun) == ([], [])
        warmed.has_engine = True
        warmed.models.changes.notify()
        await settled()
        assert (warmed.loading, warmed.begun) == (["b"], [[]])


@in_virtual_time
async def test_what_is_warm_already_or_on_its_way_is_not_loaded_again() -> None:
    warmed = Warmed()
    warmed.models.warm("b")
    warmed.models.keeper.load(ModelId("c"))
    warmed.models.advance("c", 0.5)
    async with running(warmed):
        assert warmed.loading == ["c"]
        assert warmed.models["c"].progress == 0.5
        assert warmed.counts == (3, 1, 0)


@pytest.mark.parametrize("settings", [{"models": []}, {"enabled": False}])
@in_virtual_time
async def test_with_nothing_to_warm_it_begins_and_is_done(settings: dict[str, Any]) -> None:
    warmed = Warmed(**settings)
    async with running(warmed) as task:
        assert task.done()
    assert (warmed.counts, warmed.begun) == ((0, 0, 0), [[]])


# Those that fail or take long.


@in_virtual_time
async def test_one_that_fails_holds_up_no_other() -> None:
    warmed = Warmed()
    async with running(warmed) as task:
        await warmed.fail("b")
        assert warmed.loading == ["c"]
        await warmed.warm("c")
        await warmed.fail("a")
        assert task.done()
    assert warmed.counts == (3, 1, 2)


@in_virtual_time
async def test_one_that_has_no_room_is_passed_and_says_why() -> None:
    warmed = Warmed()
    warmed.models["b"].size_bytes = TOO_LARGE_BYTES
    async with running(warmed):
        assert warmed.loading == ["c"]
        assert warmed.counts == (3, 0, 1)
        assert "of memory" in (warmed.models["b"].error or "")


@pytest.mark.parametrize("parallel", [False, True])
@in_virtual_time
async def test_all_that_fail_are_counted_and_it_ends(parallel: bool) -> None:
    warmed = Warmed(parallel=parallel)
    warmed.models["c"].size_bytes = TOO_LARGE_BYTES
    async with running(warmed) as task:
        await warmed.fail("b")
        await warmed.fail("a")
        assert task.done()
    assert warmed.counts == (3, 0, 3)


@in_virtual_time
async def test_one_without_progress_goes_on_in_the_back_while_the_next_is_loaded() -> None:
    warmed = Warmed()
    async with running(warmed):
        await asyncio.sleep(_PATIENCE_S - 1)
        assert warmed.loading == ["b"]
        await asyncio.sleep(1)
        assert warmed.loading == ["b", "c"]
        assert "no progress for 30 s" in (warmed.models["b"].error or "")
        assert (warmed.counts, warmed.status.in_progress) == ((3, 0, 1), ["c"])
        await warmed.warm("b")
        assert (warmed.counts, warmed.status.in_progress) == ((3, 1, 0), ["c"])
        assert warmed.models["b"].error is None


@in_virtual_time
async def test_one_that_goes_on_slowly_is_not_given_up() -> None:
    warmed = Warmed()
    async with running(warmed):
        for hundredths in range(1, 20):
            await asyncio.sleep(_PATIENCE_S - 1)
            warmed.models.advance("b", hundredths / 100)
        await asyncio.sleep(_PATIENCE_S - 1)
        assert (warmed.loading, warmed.counts) == (["b"], (3, 0, 0))
        warmed.models["b"].phase = "warming"
        warmed.models.advance("b", 0.19)
        await asyncio.sleep(_PATIENCE_S - 1)
        assert warmed.loading == ["b"], "another phase is progress, too"
        await asyncio.sleep(2)
        assert warmed.loading == ["b", "c"]


@in_virtual_time
async def test_news_of_others_are_no_progress() -> None:
    warmed = Warmed()
    async with running(warmed):
        for _ in range(4):
            await asyncio.sleep(_PATIENCE_S / 4)
            warmed.models.changes.notify()
        await settled()
        assert warmed.loading == ["b", "c"]


@in_virtual_time
async def test_those_that_make_no_progress_do_not_keep_it_from_ending() -> None:
    warmed = Warmed()
    async with running(warmed) as task:
        await asyncio.sleep(3 * _PATIENCE_S + 1)
        assert task.done()
        assert (warmed.counts, warmed.status.in_progress) == ((3, 0, 3), [])
        await warmed.warm("a", "c")
        await warmed.fail("b")
    assert warmed.counts == (3, 2, 1)


# What is told.


@in_virtual_time
async def test_what_was_warm_once_counts_as_completed_when_it_is_gone_again() -> None:
    warmed = Warmed()
    async with running(warmed):
        await warmed.warm("b")
        assert warmed.counts == (3, 1, 0)
        warmed.models.keeper.unload(ModelId("b"))
        assert (warmed.counts, warmed.status.in_progress) == ((3, 1, 0), ["c"])
        warmed.models.keeper.load(ModelId("b"))
        assert warmed.status.in_progress == ["c"]
        await warmed.fail("b")
        assert warmed.counts == (3, 1, 0)


@in_virtual_time
async def test_what_is_proposed_is_told_as_it_is() -> None:
    proposed = [ModelId("x"), ModelId("y")]
    assert Warmed().warming.status(proposed).proposed == proposed


@in_virtual_time
async def test_a_model_that_is_named_twice_is_one_model() -> None:
    warmed = Warmed(models=[{"model": "b"}, {"model": "b", "priority": "low"}])
    async with running(warmed) as task:
        assert warmed.status.in_progress == ["b"]
        await warmed.warm("b")
        assert task.done()
    assert warmed.counts == (1, 1, 0)
