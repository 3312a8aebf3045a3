"""Workers that the tests of one module share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.processes import RunningNats
from tests.worker.running_agent import RunningAgent, running_agent
from tests.worker.streaming import slowed


@pytest.fixture(scope="module")
async def agent(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    """A worker with room for all."""
    async with running_agent(nats_server.url, {"tiny": tiny_model}) as running:
        yield running


@pytest.fixture(scope="module")
async def narrow(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    """A worker that runs one sequence at a time and lets three requests wait."""
    async with running_agent(
        nats_server.url,
        {"tiny": tiny_model},
        continuous_batching={"max_batch_size": 1},
        request_queue={"max_depth": 3},
    ) as running:
        yield running


@pytest.fixture(scope="module")
async def slow(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    """A worker whose streams take many seconds, with two batch slots; its lease is as long as
    by default."""
    async with running_agent(
        nats_server.url,
        {"tiny": tiny_model},
        continuous_batching={"max_batch_size": 2},
        controller={"failover": {"heartbeat_interval_ms": 1000}},
    ) as running:
        async with slowed(running):
            yield running
