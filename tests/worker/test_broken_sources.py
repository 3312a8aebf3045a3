"""Models that are none, or would take the engine down: the worker serves its other model."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.ids import ModelId
from tests.processes import RunningNats
from tests.worker.running_agent import RunningAgent, running_agent

pytestmark = pytest.mark.anyio

_NO_FOLDERS = {
    "missing": "is not a folder",
    "file": "is not a folder",
    "link": "is not a folder",
    "empty": "has no config.json, so it is not a model folder",
    "folders": "has no config.json, so it is not a model folder",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Path]:
    """Paths by the names of their models."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "file").write_text("{}")
    (folder / "link").symlink_to(folder / "nowhere")
    (folder / "empty").mkdir()
    (folder / "folders" / "config.json").mkdir(parents=True)
    vocabulary = json.loads((tiny_model / "config.json").read_text())["vocab_size"]
    tokens = [_token(number) for number in range(vocabulary, vocabulary + 50)]
    _copy(tiny_model, folder / "more-tokens", "tokenizer.json", added_tokens=tokens)
    _copy(tiny_model, folder / "far-end", "config.json", eos_token_id=10**9)
    names = [*_NO_FOLDERS, "more-tokens", "far-end"]
    return {"tiny": tiny_model, **{name: folder / name for name in names}}


def _token(number: int) -> dict[str, Any]:
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {"id": number, "content": f"<{number}>", "special": True, **flags}


def _copy(model: Path, folder: Path, name: str, **fields: Any) -> None:
    """A copy of a model with fields added to one of its files, or to a list in it."""
    shutil.copytree(model, folder)
    body = json.loads((folder / name).read_text())
    for key, value in fields.items():
        body[key] = [*body[key], *value] if isinstance(value, list) else value
    (folder / name).write_text(json.dumps(body))


@pytest.fixture(scope="module")
async def agent(nats_server: RunningNats, sources: dict[str, Path]) -> AsyncIterator[RunningAgent]:
    async with running_agent(
        nats_server.url, sources, engines={"max_restarts": 1, "restart_delay_ms": 10}
    ) as running:
        yield running


@pytest.mark.parametrize("name", _NO_FOLDERS)
async def test_what_is_no_model_folder_fails_its_requests_with_its_path(
    agent: RunningAgent, sources: dict[str, Path], name: str
) -> None:
    beside = await agent.start(max_tokens=100)
    failed = await (await agent.start(model=ModelId(name))).requeued()
    assert failed.code == "model_unavailable"
    assert f"model {name}: {sources[name]} {_NO_FOLDERS[name]}" in failed.message
    assert await agent.refusal_code(model=ModelId(name)) == "model_unavailable"
    await beside.done()
    await (await agent.start()).done()


async def test_a_token_that_the_weights_do_not_have_is_refused(agent: RunningAgent) -> None:
    failed = await (await agent.start(model=ModelId("more-tokens"), prompt="<299>")).failed()
    assert failed.error.code in ("invalid_request", "model_unavailable")
    assert "299" in failed.error.message or "more-tokens" in failed.error.message


async def test_a_model_whose_loading_kills_the_engine_is_given_up_and_the_other_is_served(
    agent: RunningAgent, sources: dict[str, Path]
) -> None:
    """Its end token lies far outside its
    vocabulary, and on a CPU looking that up ends the process."""
    far_end = ModelId("far-end")
    await (await agent.start(model=far_end)).requeued()
    await (await agent.start()).done()
    assert await agent.refusal_code(model=far_end) == "model_unavailable"
    status = {model.id: model for model in (await agent.health()).worker.models}[far_end]
    assert status.state == "failed"
    assert status.error is not None and str(sources["far-end"]) in status.error
