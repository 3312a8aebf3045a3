"""Workers that the tests of one module share. None of them leaves requests to the next, in whatever
order they run."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.processes import RunningNats
from tests.worker.running_agent import OWNER, RunningAgent, running_agent
from tests.worker.streaming import slowed


@pytest.fixture(scope="module")
async def shared_agent(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    async with running_agent(nats_server.url, {"tiny": tiny_model}) as running:
        yield running


@pytest.fixture(scope="module")
async def shared_narrow(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    async with running_agent(
        nats_server.url,
        {"tiny": tiny_model},
        continuous_batching={"max_batch_size": 1},
        request_queue={"max_depth": 3},
    ) as running:
        yield running


@pytest.fixture(scope="module")
async def shared_slow(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    async with running_agent(
        nats_server.url,
        {"tiny": tiny_model},
        continuous_batching={"max_batch_size": 2},
        controller={"failover": {"heartbeat_interval_ms": 1000}},
    ) as running:
        async with slowed(running):
            yield running


async def led(running: RunningAgent) -> RunningAgent:
    """By the usual one, also where another one led in the test before."""
    if running.leader != OWNER:
        await running.claim()
    return running


@pytest.fixture
async def agent(shared_agent: RunningAgent) -> AsyncIterator[RunningAgent]:
    """A worker with room for all."""
    yield await led(shared_agent)
    await shared_agent.end_all()


@pytest.fixture
async def narrow(shared_narrow: RunningAgent) -> AsyncIterator[RunningAgent]:
    """A worker that runs one sequence at a time and lets three requests wait."""
    yield await led(shared_narrow)
    await shared_narrow.end_all()


@pytest.fixture
async def slow(shared_slow: RunningAgent) -> AsyncIterator[RunningAgent]:
    """A worker whose streams take many seconds, with two batch slots; its lease is as long as
    by default."""
    yield await led(shared_slow)
    await shared_slow.end_all()


@pytest.fixture
async def unclaimed(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    """A worker of the test's own that no leader has claimed yet."""
    async with running_agent(nats_server.url, {"tiny": tiny_model}, claimed=False) as running:
        yield running
