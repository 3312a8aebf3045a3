"""Too little memory: what a running worker refuses, takes back, and goes on with."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.messages.stream import StatusMessage
from shared.settings.worker import ResourceLimitsSettings
from tests.processes import RunningNats
from tests.worker.running_agent import RunningAgent, running_agent

pytestmark = pytest.mark.anyio

_LONG = 900


@pytest.fixture
async def agent(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    models: dict[str, Any] = {
        "tiny": {"path": str(tiny_model), "pinned": True},
        "idle": {"path": str(tiny_model)},
    }
    async with running_agent(
        nats_server.url, models, pre_warming={"models": [{"model": m} for m in models]}
    ) as running:
        yield running


async def _press(agent: RunningAgent, pressure: str) -> None:
    """Have the worker believe that it may take more, or less, than it does."""
    own_mb = (await agent.health()).worker.memory.own_bytes // 1_000_000
    far = 10 * own_mb
    limits = {
        "none": ResourceLimitsSettings(max_memory_mb=far, critical_memory_mb=far),
        "soft": ResourceLimitsSettings(max_memory_mb=own_mb // 2, critical_memory_mb=far),
        "hard": ResourceLimitsSettings(max_memory_mb=own_mb // 2, critical_memory_mb=own_mb // 2),
    }
    agent.agent._scheduler.guard._settings = limits[pressure]
    await agent.until_reported(lambda report: report.memory.pressure == pressure)


async def test_above_the_soft_limit_low_priority_is_refused_and_idle_models_go(
    agent: RunningAgent,
) -> None:
    await _press(agent, "soft")
    (low,) = (await agent.send(agent.dispatch(priority="low"))).results
    assert low.refusal is not None
    assert low.refusal.code == "memory_pressure"
    assert low.refusal.retry_after_ms is not None
    await (await agent.start()).done()
    await agent.until_reported(
        lambda report: [model.state for model in report.models] == ["warm", "available"]
    )
    memory = (await agent.health()).worker.memory
    assert (memory.pressure, memory.evictions, memory.refusals) == ("soft", 1, 1)

    await _press(agent, "none")
    await (await agent.start(priority="low")).done()


async def test_above_the_hard_limit_all_new_is_refused_and_what_runs_gives_way_and_ends_whole(
    agent: RunningAgent,
) -> None:
    whole = await agent.start(max_tokens=_LONG)
    await whole.done()
    streams = [await agent.start(max_tokens=_LONG) for _ in range(4)]
    for stream in streams:
        await stream.started()
    await _press(agent, "hard")
    assert await agent.refusal_code(priority="high") == "memory_pressure"
    await agent.wire.wait(
        lambda: any(
            isinstance(message, StatusMessage) and message.status == "preempted"
            for stream in streams
            for message in stream.messages
        )
    )
    assert all(stream.ends == [] or stream.token_ids() == whole.token_ids() for stream in streams)
    await _press(agent, "none")
    for stream in streams:
        await stream.done()
        assert stream.token_ids() == whole.token_ids()
    assert (await agent.health()).worker.engines[0].preemptions > 0


async def test_what_waits_stays_in_the_queue_while_memory_is_short(
    agent: RunningAgent,
) -> None:
    blocking = [await agent.start(max_tokens=900) for _ in range(32)]
    waiting = await agent.start(max_tokens=4)
    await _press(agent, "hard")
    assert (await agent.health()).worker.queued_requests >= 1
    await _press(agent, "none")
    await agent.cancel_all(*blocking)
    await waiting.done()
