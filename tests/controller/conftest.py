"""A running controller, or a list runner that is driven by hand, for each test."""

from collections.abc import AsyncIterator

import pytest

from controller.prompt_lists import list_publisher, list_runner
from shared.bus import Bus
from shared.settings.nats import NatsSettings
from tests.controller.driven_runner import DrivenRunner
from tests.controller.running import Running, running_controller
from tests.worker.virtual_time import Clock


@pytest.fixture
async def cluster(nats_settings: NatsSettings, bus: Bus) -> AsyncIterator[Running]:
    async with running_controller(nats_settings, bus) as running:
        yield running


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> DrivenRunner:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    for module in (list_publisher, list_runner):
        monkeypatch.setattr(module, "boottime_s", clock)
    return DrivenRunner(clock)
