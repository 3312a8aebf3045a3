"""Models on a running worker: loaded, listed, unloaded, by order, on demand and by themselves."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from shared import subjects
from shared.codec import decode
from shared.ids import ModelId
from shared.messages.control import ControlReply, LoadModel, UnloadModel
from shared.messages.events import WorkerEvent
from shared.messages.model_status import ModelStatus
from shared.messages.stream import StatusMessage
from tests.adapters import make_adapter
from tests.hub import HubStandIn
from tests.models import make_tiny_model
from tests.processes import RunningNats
from tests.worker.running_agent import ClientStream, RunningAgent, running_agent
from worker.host.process_usage import footprint_bytes

pytestmark = pytest.mark.anyio

_TINY, _OTHER = ModelId("tiny"), ModelId("other")
_MEBIBYTE = 2**20
_HEAVY_BYTES = 300 * _MEBIBYTE
_MOST_LOADS = 10


@pytest.fixture(scope="module")
def heavy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is heavy beside the processes of a worker."""
    folder = tmp_path_factory.mktemp("heavy") / "model"
    return make_tiny_model(folder, intermediate_size=_HEAVY_BYTES // 1536)


@pytest.fixture(scope="module")
async def engine_bytes(nats_server: RunningNats, tiny_model: Path) -> int:
    """What an engine takes with a tiny model."""
    async with running_agent(nats_server.url, {"tiny": tiny_model}) as agent:
        await (await agent.start()).done()
        return (await agent.health()).worker.engines[0].memory_bytes


@pytest.fixture
def base_bytes(engine_bytes: int, heavy_model: Path) -> int:
    """What a worker takes with a tiny model. The agent's process is that of the tests, which has
    grown by what it has run so far, and by making the heavy model."""
    return engine_bytes + footprint_bytes([os.getpid()])


def _limits(base_bytes: int, heavy_models: float) -> dict[str, int]:
    """Room for so many heavy models."""
    soft = (base_bytes + int(heavy_models * _HEAVY_BYTES)) // 1_000_000
    return {"max_memory_mb": soft, "critical_memory_mb": soft + 500}


async def _states(agent: RunningAgent) -> dict[str, str]:
    return {model.id: model.state for model in (await agent.health()).worker.models}


async def _load(agent: RunningAgent, model: str) -> ControlReply:
    return await agent.control("load", LoadModel(model=ModelId(model)))


async def _until(agent: RunningAgent, model: str, state: str) -> ModelStatus:
    def status() -> ModelStatus | None:
        models = agent.reports()[-1][1].models
        return next((one for one in models if one.id == model), None)

    await agent.wire.wait(lambda: (now := status()) is not None and now.state == state)
    found = status()
    assert found is not None
    return found


# By order.


async def test_a_model_in_use_is_not_unloaded_until_its_requests_have_ended(
    agent: RunningAgent,
) -> None:
    stream = await agent.start(max_tokens=900)
    await stream.started()
    refused = await agent.control("unload", UnloadModel(model=_TINY))
    assert (refused.ok, refused.code) == (False, "model_in_use")
    await agent.cancel_all(stream)
    assert (await agent.control("unload", UnloadModel(model=_TINY))).ok
    assert (await _states(agent))["tiny"] == "available"
    assert (await _load(agent, "tiny")).ok
    await _until(agent, "tiny", "warm")


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_a_model_that_is_not_here_is_an_error_that_names_those_that_are(
    agent: RunningAgent, verb: str
) -> None:
    reply = await agent.control(verb, b'{"model": "nonsense"}')
    assert (reply.ok, reply.code) == (False, "unknown_model")
    assert reply.message is not None and "tiny" in reply.message


async def test_memory_is_given_back_when_a_model_goes(
    nats_server: RunningNats, tiny_model: Path, heavy_model: Path
) -> None:
    models = {"tiny": tiny_model, "heavy": heavy_model}
    async with running_agent(nats_server.url, models) as agent:
        before = (await agent.health()).worker.engines[0].memory_bytes
        heavy = await _load(agent, "heavy")
        assert _HEAVY_BYTES <= heavy.models[0].size_bytes <= 1.01 * _HEAVY_BYTES
        await _until(agent, "heavy", "warm")
        held = (await agent.health()).worker.engines[0].memory_bytes
        assert held - before > 0.9 * _HEAVY_BYTES
        await agent.control("unload", UnloadModel(model=ModelId("heavy")))
        await agent.until_reported(
            lambda report: report.engines[0].memory_bytes < before + 0.2 * _HEAVY_BYTES
        )


async def test_an_adapter_changes_the_answers_of_its_own_model_and_one_that_is_not_named_is_told(
    nats_server: RunningNats, tiny_model: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_model, base)
    tuned = make_adapter(tmp_path / "tuned", base)
    models: dict[str, Any] = {
        "tiny": base,
        "named": {"path": str(base), "adapter": str(tuned)},
        "alone": tuned,
        "lost": {"path": str(base), "adapter": str(tmp_path / "lost")},
    }
    async with running_agent(nats_server.url, models) as agent:
        texts = {}
        for model in ("tiny", "named", "alone"):
            stream = await agent.start(model=ModelId(model))
            await stream.done()
            texts[model] = stream.token_ids()
        assert texts["named"] == texts["alone"] != texts["tiny"]
        (warning,) = (await _until(agent, "tiny", "warm")).warnings
        assert str(tuned) in warning and "set it as `adapter`" in warning
        assert (await _until(agent, "alone", "warm")).warnings == []
        await _load(agent, "lost")
        error = (await _until(agent, "lost", "failed")).error
        assert error is not None and "lost is neither a folder nor a Hugging Face id" in error


# On demand.


async def test_requests_for_a_model_that_is_being_loaded_wait_for_the_one_load(
    nats_server: RunningNats, tiny_model: Path, heavy_model: Path
) -> None:
    models = {"tiny": tiny_model, "heavy": heavy_model}
    async with running_agent(nats_server.url, models) as agent:
        streams = [await agent.start(model=ModelId("heavy"), max_tokens=2) for _ in range(3)]
        for stream in streams:
            await stream.done()
        for stream in streams:
            assert stream.statuses[:2] == ["accepted", "loading"]
        progress = [
            model.progress
            for _, report in agent.reports()
            for model in report.models
            if model.id == "heavy" and model.state == "loading" and model.progress is not None
        ]
        assert progress


async def test_where_loading_on_demand_is_off_only_what_is_loaded_is_served(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    models = {"tiny": tiny_model, "other": tiny_model}
    async with running_agent(nats_server.url, models, model_loading={"on_demand": False}) as agent:
        assert await agent.refusal_code(model=_OTHER) == "model_unavailable"
        assert (await _load(agent, "other")).ok
        await _until(agent, "other", "warm")
        await (await agent.start(model=_OTHER)).done()


async def test_streams_go_on_while_another_model_is_loaded(
    nats_server: RunningNats, tiny_model: Path, heavy_model: Path
) -> None:
    """How many chunks come during one load depends on the disk: it is loaded until there were
    some."""
    models = {"tiny": tiny_model, "heavy": heavy_model}
    chunks = 0
    async with running_agent(nats_server.url, models) as agent:
        for _ in range(_MOST_LOADS):
            stream = await agent.start(max_tokens=900)
            await stream.started()
            await _load(agent, "heavy")
            await _until(agent, "heavy", "warm")
            await agent.cancel_all(stream)
            chunks += _chunks_while_loading(agent, stream)
            if chunks > 5:
                break
            await agent.control("unload", UnloadModel(model=ModelId("heavy")))
            await _until(agent, "heavy", "available")
    assert chunks > 5


def _chunks_while_loading(agent: RunningAgent, stream: ClientStream) -> int:
    """Of a stream, while the second model was being read."""
    chunks, loading = 0, False
    for message in agent.wire.log:
        if message.subject == subjects.worker_event(agent.id):
            second = decode(WorkerEvent, message.payload).worker.models[1]
            loading = second.state == "loading" and bool(second.progress)
        elif message.subject == stream.dispatch.inboxes[0]:
            chunks += loading
    return chunks


# By themselves.


async def test_a_model_that_is_not_used_for_its_time_to_live_goes_and_comes_back(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    models: dict[str, Any] = {
        "tiny": {"path": str(tiny_model), "ttl_s": 1},
        "other": {"path": str(tiny_model), "ttl_s": 1, "pinned": True},
    }
    async with running_agent(nats_server.url, models) as agent:
        await (await agent.start(model=_OTHER)).done()
        await _until(agent, "tiny", "available")
        assert (await _states(agent))["other"] == "warm"
        await (await agent.start()).done()


# Room.


async def test_a_model_that_does_not_fit_is_refused_with_its_size_and_what_is_free(
    nats_server: RunningNats, tiny_model: Path, heavy_model: Path, base_bytes: int
) -> None:
    models = {"tiny": tiny_model, "a": heavy_model, "b": heavy_model, "c": heavy_model}
    async with running_agent(
        nats_server.url,
        models,
        resource_limits=_limits(base_bytes, 2.8),
        model_loading={"eviction": False},
    ) as agent:
        for fits in ("a", "b"):
            await (await agent.start(model=ModelId(fits), max_tokens=2)).done()
        refused = await _load(agent, "c")
        assert (refused.ok, refused.code) == (False, "memory_pressure")
        assert refused.message is not None
        assert "c needs 0.32 GB" in refused.message and "are free of" in refused.message
        assert await agent.refusal_code(model=ModelId("c")) == "memory_pressure"
        assert await _states(agent) == {
            "tiny": "warm", "a": "warm", "b": "warm", "c": "available"
        }  # fmt: skip
        await (await agent.start(model=ModelId("b"), max_tokens=2)).done()


async def test_with_eviction_the_idle_one_goes_that_matters_least(
    nats_server: RunningNats, tiny_model: Path, heavy_model: Path, base_bytes: int
) -> None:
    def heavy(**fields: Any) -> dict[str, Any]:
        return {"path": str(heavy_model), **fields}

    models: dict[str, Any] = {
        "tiny": {"path": str(tiny_model), "pinned": True},
        "important": heavy(priority="high"),
        "usual": heavy(),
        "third": heavy(),
    }
    async with running_agent(
        nats_server.url, models, resource_limits=_limits(base_bytes, 2.8)
    ) as agent:
        for name in ("usual", "important"):
            await (await agent.start(model=ModelId(name), max_tokens=2)).done()
        await (await agent.start(model=ModelId("third"), max_tokens=2)).done()
        assert await _states(agent) == {
            "tiny": "warm", "important": "warm", "usual": "available", "third": "warm"
        }  # fmt: skip
        assert (await agent.health()).worker.memory.evictions == 1

        stream = await agent.start(model=ModelId("third"), max_tokens=900)
        await stream.started()
        # Neither what is in use goes, nor what matters more.
        assert await agent.refusal_code(model=ModelId("usual")) == "memory_pressure"
        await agent.cancel_all(stream)


# From the hub.


async def test_a_model_is_fetched_from_the_hub_and_its_client_sees_how_far_it_is(
    nats_server: RunningNats,
    tiny_model: Path,
    heavy_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with HubStandIn() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        commit = hub.add("team/heavy", heavy_model)
        models: dict[str, Any] = {
            "tiny": tiny_model,
            "heavy": {"path": "team/heavy", "revision": commit},
        }
        async with running_agent(nats_server.url, models) as agent:
            stream = await agent.start(model=ModelId("heavy"), max_tokens=2)
            await stream.done()
            shown = [m.progress for m in stream.messages if isinstance(m, StatusMessage)]
            seen = [progress for progress in shown if progress is not None]
            assert seen == sorted(seen) and len(set(seen)) > 1, shown
        assert hub.sent_bytes("model.safetensors") >= _HEAVY_BYTES


@pytest.mark.parametrize("fault", ["unknown", "off"])
async def test_what_cannot_be_fetched_fails_its_requests_and_nothing_else(
    nats_server: RunningNats,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    expected = {"unknown": "team/model", "off": "downloads"}[fault]
    with HubStandIn() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        if fault == "off":
            hub.add("team/model", tiny_model)
        models: dict[str, Any] = {"tiny": tiny_model, "hub": {"path": "team/model"}}
        async with running_agent(
            nats_server.url, models, model_loading={"downloads": fault != "off"}
        ) as agent:
            failed = await (await agent.start(model=ModelId("hub"))).requeued()
            assert failed.code == "model_unavailable"
            assert expected in failed.message
            _, status = (await agent.health()).worker.models
            assert status.state == "failed" and expected in (status.error or "")
            await (await agent.start()).done()
