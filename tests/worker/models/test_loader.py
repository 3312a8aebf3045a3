"""Loads of models, each by itself: one that fails or is given up harms no other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.change_notifier import ChangeNotifier
from shared.errors import ClusterError
from shared.ids import ModelId
from shared.settings import ClusterSettings
from tests.hub import HubStandIn
from tests.processes import wait_until
from tests.worker.models.fetching import (
    PLACE,
    REPO,
    WEIGHTS,
    fetching_processes,
)
from tests.worker.recording_engine import RecordingEngine
from worker.link.orders import LoadModel
from worker.memory.guard import MemoryGuard
from worker.models.lifecycle import ModelLifecycle
from worker.models.worker_models import WorkerModel

pytestmark = pytest.mark.anyio

_GOOD, _BAD = ModelId("good"), ModelId("bad")


class _Loading:
    """The models of a worker whose engine does nothing, and what was said of those that failed."""

    def __init__(self, models: dict[str, str]) -> None:
        settings = ClusterSettings.model_validate(
            {
                "skills": {"chat": list(models)},
                "models": {name: {"path": path} for name, path in models.items()},
            }
        )
        self.engine = RecordingEngine()
        self.failed: dict[ModelId, str] = {}
        self.lifecycle = ModelLifecycle(
            settings,
            [self.engine],
            MemoryGuard(settings.worker.resource_limits, [self.engine]),
            ChangeNotifier(),
            in_use=lambda: [],
            on_failed=self._on_failed,
        )

    def _on_failed(self, model: WorkerModel, error: ClusterError) -> None:
        self.failed[model.id] = error.message

    def state(self, model: ModelId) -> tuple[Any, ...]:
        found = self.lifecycle.catalogue[model]
        return found.state, found.phase

    @property
    def ordered(self) -> list[ModelId]:
        return [order.model for order in self.engine.orders if isinstance(order, LoadModel)]

    async def until_ordered(self, *models: ModelId) -> None:
        async def has_ordered() -> bool:
            return set(models) <= set(self.ordered)

        await wait_until(has_ordered)


@asynccontextmanager
async def _loading(**models: str) -> AsyncIterator[_Loading]:
    loading = _Loading(models)
    running = asyncio.create_task(loading.lifecycle.loader.run())
    try:
        yield loading
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert fetching_processes() == []


async def _until_stalled(hub: HubStandIn) -> None:
    assert await asyncio.to_thread(hub.stalled.wait, 30)


async def test_a_fault_of_ours_fails_one_model_and_the_others_are_loaded(model: Path) -> None:
    async with _loading(good=str(model), bad=str(model)) as loading:

        async def ask(repo: str, revision: str | None) -> list[Any]:
            raise AssertionError("nothing is downloaded")

        loading.lifecycle.loader.ask_peers = ask
        loading.lifecycle.catalogue[_BAD].source = None  # type: ignore[assignment]
        loading.lifecycle.loader.load(loading.lifecycle.catalogue[_BAD])
        loading.lifecycle.load(_GOOD)
        await loading.until_ordered(_GOOD)
        await wait_until(_is_failed(loading, _BAD))
        assert "unexpected error" in loading.failed[_BAD]
        assert loading.ordered == [_GOOD]


def _is_failed(loading: _Loading, model: ModelId) -> Any:
    async def is_failed() -> bool:
        return bool(loading.state(model)[0] == "failed")

    return is_failed


async def test_models_may_be_added_while_sizes_are_read(model: Path) -> None:
    async with _loading(good=str(model)) as loading:
        await asyncio.sleep(0)  # the task that reads the sizes has begun
        more = {"skills": {"chat": ["good", *(f"m{n}" for n in range(50))]}}
        loading.lifecycle.configure(ClusterSettings.model_validate(more))
        loading.lifecycle.load(_GOOD)
        await loading.until_ordered(_GOOD)


async def test_a_model_that_is_unloaded_is_downloaded_no_longer(
    hub: HubStandIn, model: Path
) -> None:
    hub.add(REPO, model)
    hub.faults.stall[WEIGHTS] = PLACE
    async with _loading(good=REPO) as loading:
        loading.lifecycle.load(_GOOD)
        await _until_stalled(hub)
        assert len(fetching_processes()) == 1
        loading.lifecycle.unload(_GOOD)

        async def is_over() -> bool:
            return fetching_processes() == []

        await wait_until(is_over)
        assert loading.state(_GOOD) == ("available", None)
        assert loading.failed == {} and loading.ordered == []


async def test_one_that_is_loaded_again_at_once_is_downloaded_once_at_a_time(
    hub: HubStandIn, model: Path
) -> None:
    hub.add(REPO, model)
    hub.faults.stall[WEIGHTS] = PLACE
    async with _loading(good=REPO) as loading:
        loading.lifecycle.load(_GOOD)
        await _until_stalled(hub)
        hub.faults.stall.clear()
        for _ in range(5):
            loading.lifecycle.unload(_GOOD)
            loading.lifecycle.load(_GOOD)
        seen = 0

        async def is_ordered() -> bool:
            nonlocal seen
            seen = max(seen, len(fetching_processes()))
            return _GOOD in loading.ordered

        await wait_until(is_ordered)
        assert seen <= 1
        assert loading.ordered == [_GOOD]
        assert loading.state(_GOOD)[0] == "loading"


async def test_one_that_is_unloaded_before_its_load_began_is_not_loaded(model: Path) -> None:
    async with _loading(good=str(model), bad=str(model)) as loading:
        loading.lifecycle.load(_BAD)
        loading.lifecycle.unload(_BAD)
        loading.lifecycle.load(_GOOD)
        await loading.until_ordered(_GOOD)
        assert loading.ordered == [_GOOD]
        assert loading.state(_BAD) == ("available", None)
