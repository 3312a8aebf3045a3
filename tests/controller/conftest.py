"""A running controller for each test."""

from collections.abc import AsyncIterator

import pytest

from shared.bus import Bus
from shared.settings.tree import Nats
from tests.controller.running import Running, running_controller


@pytest.fixture
async def cluster(nats_settings: Nats, bus: Bus) -> AsyncIterator[Running]:
    async with running_controller(nats_settings, bus) as running:
        yield running
