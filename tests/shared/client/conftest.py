"""A client on a connection of its own, and a simulated controller."""

from collections.abc import AsyncIterator

import pytest

from shared.bus import Bus
from shared.client import Cluster, connect
from shared.settings.tree import Nats
from tests.shared.client.simulated_controller import SimulatedController


@pytest.fixture
async def controller(bus: Bus) -> SimulatedController:
    simulated = SimulatedController(bus)
    await simulated.open()
    return simulated


@pytest.fixture
async def cluster(nats_settings: Nats) -> AsyncIterator[Cluster]:
    async with connect(nats_settings, client="ada") as connected:
        yield connected
