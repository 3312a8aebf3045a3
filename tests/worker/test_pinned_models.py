"""`pin_model`: a model that is pinned by order is not evicted, until its worker restarts."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.ids import ModelId
from shared.messages.control import PinModel
from tests.processes import RunningNats
from tests.worker.running_agent import RunningAgent, running_agent

pytestmark = pytest.mark.anyio

_TINY, _OTHER, _PINNED = ModelId("tiny"), ModelId("other"), ModelId("pinned")


def _models(folder: Path) -> dict[str, Any]:
    return {
        "tiny": {"path": str(folder), "priority": "high"},
        "other": {"path": str(folder), "priority": "low"},
        "pinned": {"path": str(folder), "priority": "low", "pinned": True},
    }


@pytest.fixture
async def three(nats_server: RunningNats, tiny_model: Path) -> AsyncIterator[RunningAgent]:
    async with running_agent(nats_server.url, _models(tiny_model)) as running:
        yield running


async def _pinned(agent: RunningAgent) -> set[str]:
    return {model.id for model in (await agent.health()).worker.models if model.pinned}


async def _pin(agent: RunningAgent, model: ModelId, pinned: bool) -> None:
    reply = await agent.control("pin_model", PinModel(model=model, pinned=pinned))
    assert reply.ok and [each.id for each in reply.models] == [model]
    assert reply.models[0].pinned is pinned


def _evicted(agent: RunningAgent) -> list[str]:
    """All that memory pressure would take, in its order."""
    models = agent.agent._scheduler.models
    gone: list[str] = []
    while (before := {m.id for m in models.catalogue if m.state == "warm"}) and models.evict_one():
        gone += before - {m.id for m in models.catalogue if m.state == "warm"}
    return gone


async def _load_all(agent: RunningAgent) -> None:
    for model in (_TINY, _OTHER, _PINNED):
        await (await agent.start(model=model, max_tokens=2)).done()


async def test_a_pinned_model_is_not_evicted_and_one_whose_pin_ended_is(
    three: RunningAgent,
) -> None:
    await _load_all(three)
    assert await _pinned(three) == {"pinned"}
    await _pin(three, _OTHER, True)
    await _pin(three, _PINNED, False)
    assert await _pinned(three) == {"other"}
    assert _evicted(three) == ["pinned", "tiny"]
    await _pin(three, _OTHER, False)
    assert _evicted(three) == ["other"]


async def test_a_model_can_be_pinned_before_it_is_loaded(three: RunningAgent) -> None:
    await _pin(three, _OTHER, True)
    await _load_all(three)
    assert _evicted(three) == ["tiny"]


async def test_a_restart_ends_what_was_ordered(nats_server: RunningNats, tiny_model: Path) -> None:
    async with running_agent(nats_server.url, _models(tiny_model)) as first:
        await _pin(first, _TINY, True)
        assert await _pinned(first) == {"tiny", "pinned"}
    async with running_agent(nats_server.url, _models(tiny_model)) as second:
        assert await _pinned(second) == {"pinned"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model": "nonsense"}', "unknown_model"),
        (b"{}", "invalid_request"),
        (b'{"model": 5}', "invalid_request"),
        (b'{"model": "tiny", "pinned": "maybe"}', "invalid_request"),
        (b"", "invalid_request"),
    ],
)
async def test_a_bad_order_pins_nothing(agent: RunningAgent, body: bytes, code: str) -> None:
    reply = await agent.control("pin_model", body)
    assert (reply.ok, reply.code) == (False, code) and reply.message
    assert await _pinned(agent) == set()
