"""A client on a connection of its own, and a simulated controller."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from shared.bus import Bus
from shared.client import Cluster, RecoveryTimes, connect
from shared.client.inboxes import SharedInbox
from shared.settings.nats import NatsSettings
from tests.access.roles import as_client
from tests.shared.client.simulated_controller import SimulatedController

QUICK = replace(RecoveryTimes().scaled(0.25), republish_after_s=1.0)
"""Silence is noticed soon; a busy machine still has time to answer before the second publish."""


@pytest.fixture
async def controller(bus: Bus) -> SimulatedController:
    simulated = SimulatedController(bus)
    await simulated.open()
    return simulated


@pytest.fixture(params=["own inboxes", "a shared inbox"])
async def cluster(
    nats_settings: NatsSettings, request: pytest.FixtureRequest
) -> AsyncIterator[Cluster]:
    nats = as_client(nats_settings.servers[0], "ada")
    async with connect(nats, client="ada", times=QUICK) as connected:
        if request.param == "own inboxes":
            yield connected
        else:
            yield sharing(connected)


def sharing(cluster: Cluster) -> Cluster:
    """The same client, with one inbox for all its streams."""
    inbox = SharedInbox(cluster.bus, cluster.bus.new_inbox())
    return Cluster(cluster.bus, cluster.client, inbox, QUICK)
