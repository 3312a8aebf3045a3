"""A simulated cluster on a NATS server of its own."""

import pytest

from shared.bus import Bus
from tests.shared.cli.simulated_cluster import SimulatedCluster


@pytest.fixture
async def cluster(own_bus: Bus) -> SimulatedCluster:
    simulated = SimulatedCluster(own_bus)
    await simulated.open()
    return simulated
