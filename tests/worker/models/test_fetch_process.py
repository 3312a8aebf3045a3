"""Models are fetched from a hub, over real HTTP, by a real child process, into a real cache."""

import asyncio
import json
import logging
import resource
from pathlib import Path

import pytest

from tests.hub import HubStandIn
from tests.worker.models.fetching import (
    NEEDED,
    PLACE,
    REPO,
    WEIGHT_BYTES,
    WEIGHTS,
    Fetching,
    cache,
    stalled,
)
from tests.worker.models.model_folders import write_adapter, write_model
from worker.models.adapters import inspect_adapter
from worker.models.files import inspect

pytestmark = pytest.mark.anyio


async def test_what_a_model_needs_is_fetched_and_nothing_else(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    fetching = Fetching()
    folder = await fetching.folder()
    assert {path.name for path in folder.iterdir()} == NEEDED
    assert all((folder / name).read_bytes() == (model / name).read_bytes() for name in NEEDED)
    assert inspect(folder, trust_remote_code=False).weight_bytes == WEIGHT_BYTES
    size_bytes = sum((model / name).stat().st_size for name in NEEDED)
    assert fetching.sizes == [(size_bytes, size_bytes)]
    assert fetching.progress == sorted(fetching.progress) and fetching.progress[-1] == 1.0
    assert {sent.name for sent in hub.sent} == NEEDED


async def test_named_chat_templates_are_fetched_and_of_other_folders_nothing(
    hub: HubStandIn, model: Path
) -> None:
    templates = {"additional_chat_templates/tool_use.jinja", "additional_chat_templates/rag.jinja"}
    others = {
        "additional/x.json", "additional_chat_templates_old/x.jinja", "b/model.safetensors",
        "additional_chat_templates/deeper/x.jinja", "additional_chat_templates/README.md",
    }  # fmt: skip
    for name in templates | others:
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text(f"content of {name}")
    hub.add(REPO, model)
    folder = await Fetching().folder()
    assert {sent.name for sent in hub.sent} == NEEDED | templates
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == NEEDED | templates
    hub.sent.clear()
    assert await Fetching().folder() == folder and hub.sent == []


@pytest.mark.parametrize("peft", [False, True])
async def test_an_adapter_is_fetched_as_a_model_is_and_found_again_without_the_hub(
    hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peft: bool
) -> None:
    adapter = write_adapter(tmp_path / "adapter", peft=peft, model="owner/base")
    hub.add(REPO, adapter)
    folder = await Fetching().folder()
    assert inspect_adapter(folder).base == "owner/base"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert await Fetching().folder() == folder


async def test_a_second_time_nothing_is_sent_again(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    first = await Fetching().folder()
    hub.sent.clear()
    again = Fetching()
    assert await again.folder() == first
    assert hub.sent == []
    assert [missing for _, missing in again.sizes] == [0]


async def test_a_new_commit_brings_only_what_changed(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    first = await Fetching().folder()
    (model / "tokenizer.json").write_text(json.dumps({"version": "2.0"}))
    hub.add(REPO, model)
    hub.sent.clear()
    second = await Fetching().folder()
    assert second != first and "2.0" in (second / "tokenizer.json").read_text()
    assert {sent.name for sent in hub.sent} == {"tokenizer.json"}


async def test_shards_are_fetched_from_the_revision_that_was_asked_for(
    hub: HubStandIn, model: Path, tmp_path: Path
) -> None:
    hub.add(REPO, model)
    sharded = write_model(tmp_path / "sharded", shards_bytes=(70_000,) * 9)
    commit = hub.add(REPO, sharded, branch="refs/pr/4")
    folder = await Fetching(revision="refs/pr/4").folder()
    assert folder.name == commit
    assert inspect(folder, trust_remote_code=False).weight_bytes == 9 * 70_000


async def test_a_cut_connection_is_taken_up_where_it_broke(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    hub.faults.cut[WEIGHTS] = PLACE
    folder = await Fetching().folder()
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    sent = [(sent.first_byte, sent.count) for sent in hub.sent if sent.name == WEIGHTS]
    size_bytes = (model / WEIGHTS).stat().st_size
    assert sent == [(0, PLACE), (PLACE, size_bytes - PLACE)]


async def test_a_later_download_goes_on_where_an_earlier_one_ended(
    hub: HubStandIn, model: Path
) -> None:
    hub.add(REPO, model)
    async with stalled(hub, model):
        pass
    hub.faults.stall.clear()
    hub.sent.clear()
    again = Fetching()
    folder = await again.folder()
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    size_bytes = (model / WEIGHTS).stat().st_size
    assert again.sizes[0][1] == size_bytes - PLACE
    assert [(sent.name, sent.first_byte) for sent in hub.sent] == [(WEIGHTS, PLACE)]


async def test_what_was_left_and_spoiled_is_found_out(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    async with stalled(hub, model):
        pass
    hub.faults.stall.clear()
    (partial,) = cache(model).glob("*/blobs/*.incomplete")
    partial.write_bytes(b"\0" * PLACE)
    assert "the checksum differs; the partial download was deleted" in await Fetching().error()
    inspect(await Fetching().folder(), trust_remote_code=False)


async def test_two_downloads_of_one_model_fetch_it_once(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    first, second = await asyncio.gather(Fetching().folder(), Fetching().folder())
    assert first == second
    assert hub.sent_bytes(WEIGHTS) == (model / WEIGHTS).stat().st_size


async def test_a_model_larger_than_the_disk_is_refused_beforehand(
    hub: HubStandIn, model: Path
) -> None:
    hub.add(REPO, model, claimed_bytes={WEIGHTS: 10**15})
    error = await Fetching().error()
    assert "needs 1000000.0 GB" in error and f"free on the disk at {cache(model)}" in error
    assert hub.sent == []


async def test_a_disk_that_fills_up_keeps_what_was_fetched(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PLACE, hard))  # the child inherits it
    try:
        error = await Fetching().error()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"the disk at {cache(model)} is full (File too large); free disk space" in error
    hub.sent.clear()
    inspect(await Fetching().folder(), trust_remote_code=False)
    assert [(sent.name, sent.first_byte) for sent in hub.sent] == [(WEIGHTS, PLACE)]


async def test_a_cache_that_cannot_be_written_is_named(
    hub: HubStandIn, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, model)
    monkeypatch.setenv("HF_HUB_CACHE", str(model / "config.json" / "cache"))
    assert f"{model / 'config.json' / 'cache'} cannot be used: " in await Fetching().error()


@pytest.mark.parametrize("change", [-1000, 0, 1000])
async def test_a_file_that_is_not_what_the_hub_named_is_an_error(
    hub: HubStandIn, model: Path, change: int
) -> None:
    hub.add(REPO, model)
    size_bytes = (model / WEIGHTS).stat().st_size
    hub.faults.instead[WEIGHTS] = b"\0" * (size_bytes + change)
    said = {-1000: f"it ends after {size_bytes - 1000} bytes", 0: "the checksum differs"}
    error = await Fetching().error()
    assert f"does not send {WEIGHTS} as listed" in error
    assert said.get(change, "it has too many bytes") in error
    hub.faults.instead.clear()
    inspect(await Fetching().folder(), trust_remote_code=False)


async def test_a_content_in_the_cache_that_was_cut_is_fetched_again(
    hub: HubStandIn, model: Path
) -> None:
    hub.add(REPO, model)
    folder = await Fetching().folder()
    (folder / WEIGHTS).resolve().write_bytes(b"short")
    inspect(await Fetching().folder(), trust_remote_code=False)


async def test_without_the_hub_a_complete_copy_is_used(
    hub: HubStandIn, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add(REPO, model)
    (model / "unused.bin").write_bytes(b"not counted")
    folder = await Fetching().folder()
    hub.close()
    offline = Fetching()
    with caplog.at_level(logging.WARNING):
        assert await offline.folder() == folder
    assert f"{hub.url} cannot be reached" in caplog.text
    assert f"using the copy in the cache, {folder}" in caplog.text
    size_bytes = sum((model / name).stat().st_size for name in NEEDED)
    assert offline.sizes == [(size_bytes, 0)]


@pytest.mark.parametrize("lost", [WEIGHTS, "tokenizer.json"])
async def test_without_the_hub_a_copy_that_lacks_a_file_is_not_used(
    hub: HubStandIn, model: Path, lost: str
) -> None:
    hub.add(REPO, model)
    ((await Fetching().folder()) / lost).unlink()
    hub.close()
    assert f"the hub at {hub.url} cannot be reached (ConnectError" in await Fetching().error()


async def test_offline_mode_is_named(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set, and the cache has no complete" in await Fetching().error()
    assert hub.requests == []


async def test_a_commit_in_the_cache_needs_no_hub(hub: HubStandIn, model: Path) -> None:
    commit = hub.add(REPO, model)
    folder = await Fetching().folder()
    hub.requests.clear()
    assert await Fetching(revision=commit).folder() == folder
    assert hub.requests == []
