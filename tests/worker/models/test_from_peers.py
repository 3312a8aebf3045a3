"""Fetching from other workers what they have: by hash, and from the hub only what none sends."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from shared.errors import ModelError
from shared.messages.files import FilesOffer
from tests.hub import HubStandIn
from tests.processes import wait_for
from tests.worker.models.fetching import (
    NEEDED,
    REPO,
    WEIGHT_BYTES,
    WEIGHTS,
    Fetching,
    cache,
    fetching_processes,
)
from tests.worker.peer_files.offering import Offering
from worker.models.files import inspect

pytestmark = pytest.mark.anyio


@pytest.fixture
async def elsewhere(hub: HubStandIn, model: Path, tmp_path: Path) -> Path:
    """The cache of another machine, which has fetched all from the hub."""
    hub.add(REPO, model)
    await Fetching().folder()
    cache(model).rename(tmp_path / "elsewhere")
    hub.sent.clear()
    hub.requests.clear()
    return tmp_path / "elsewhere"


@pytest.fixture
async def peer(elsewhere: Path) -> AsyncIterator[Offering]:
    with Offering(elsewhere) as offering:
        yield offering


def size_of(model: Path) -> int:
    return sum((model / name).stat().st_size for name in NEEDED)


def break_contents(elsewhere: Path, at: int = 700_000) -> None:
    """Other bytes, as many as before."""
    for path in (elsewhere / "models--owner--model" / "blobs").iterdir():
        content = bytearray(path.read_bytes())
        content[min(at, len(content) - 1)] ^= 1
        path.write_bytes(content)


def partial(model: Path, at_least_bytes: int) -> Path:
    """What has come of the weights, once it is so much."""

    def found() -> Path | None:
        for each in cache(model).rglob("*.incomplete"):
            with suppress(FileNotFoundError):  # it has become complete
                if each.stat().st_size >= at_least_bytes:
                    return each
        return None

    part: Path = wait_for(found, "a part has come")
    return part


async def test_all_comes_from_the_peer_and_nothing_but_the_list_from_the_hub(
    hub: HubStandIn, model: Path, peer: Offering, caplog: pytest.LogCaptureFixture
) -> None:
    fetching = Fetching(ask_peers=peer.ask)
    with caplog.at_level(logging.INFO):
        folder = await fetching.folder()
    for name in NEEDED:
        assert (folder / name).read_bytes() == (model / name).read_bytes()
    inspect(folder, trust_remote_code=False)
    assert hub.sent == [], "no content is fetched from the hub"
    assert peer.server.sent_bytes == size_of(model), "each byte passes once"
    assert peer.asked == [(REPO, None)]
    assert f"{size_of(model):,} bytes from mac-1" in caplog.text
    assert fetching.progress[-1] == 1
    again = await Fetching(ask_peers=peer.ask).folder()
    assert again == folder and peer.server.sent_bytes == size_of(model)
    assert len(peer.asked) == 1, "who misses nothing asks nobody"


async def test_killed_in_the_middle_it_goes_on_from_there(
    hub: HubStandIn, model: Path, elsewhere: Path
) -> None:
    with Offering(elsewhere, bytes_per_s=400_000) as slow:
        fetching = asyncio.create_task(Fetching(ask_peers=slow.ask).folder())
        found = await asyncio.to_thread(partial, model, 300_000)
        for process in fetching_processes():
            process.kill()
        with pytest.raises(ModelError, match="signal 9"):
            await fetching
    there = found.stat().st_size
    assert 300_000 <= there < WEIGHT_BYTES
    with Offering(elsewhere) as fast:
        folder = await Fetching(ask_peers=fast.ask).folder()
        assert fast.server.sent_bytes == (model / WEIGHTS).stat().st_size - there
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    assert hub.sent == []


async def test_a_lying_peer_is_refused_and_named_and_the_hub_asked(
    hub: HubStandIn, model: Path, elsewhere: Path, peer: Offering, caplog: pytest.LogCaptureFixture
) -> None:
    break_contents(elsewhere)
    with caplog.at_level(logging.WARNING):
        folder = await Fetching(ask_peers=peer.ask).folder()
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    assert f"{WEIGHTS} from mac-1 does not have the checksum" in caplog.text
    assert hub.sent_bytes(WEIGHTS) == (model / WEIGHTS).stat().st_size
    assert list(cache(model).rglob("*.incomplete")) == []


async def test_of_two_peers_the_honest_one_is_enough(
    hub: HubStandIn, model: Path, elsewhere: Path, tmp_path: Path
) -> None:
    honest_cache = tmp_path / "honest"
    shutil.copytree(elsewhere, honest_cache, symlinks=True)
    break_contents(elsewhere)
    with Offering(elsewhere, "liar") as liar, Offering(honest_cache, "honest") as honest:

        async def ask(repo: str, revision: str | None) -> list[FilesOffer]:
            return [each.offer(repo, revision) for each in (liar, honest)]

        folder = await Fetching(ask_peers=ask).folder()
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    assert hub.sent == []


async def test_a_peer_that_goes_away_in_the_middle_costs_only_the_rest(
    hub: HubStandIn, model: Path, elsewhere: Path
) -> None:
    with Offering(elsewhere, bytes_per_s=400_000) as slow:
        fetching = asyncio.create_task(Fetching(ask_peers=slow.ask).folder())
        await asyncio.to_thread(partial, model, 300_000)
        await asyncio.to_thread(slow.server.close)
        folder = await fetching
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    whole = (model / WEIGHTS).stat().st_size
    assert 0 < hub.sent_bytes(WEIGHTS) <= whole - 300_000


async def test_without_the_hub_the_peers_list_it_too(
    hub: HubStandIn, model: Path, peer: Offering, caplog: pytest.LogCaptureFixture
) -> None:
    hub.close()
    with caplog.at_level(logging.WARNING):
        folder = await Fetching(ask_peers=peer.ask).folder()
    assert "using the files that other workers have" in caplog.text
    for name in NEEDED:
        assert (folder / name).read_bytes() == (model / name).read_bytes()
    assert await Fetching(ask_peers=peer.ask).folder() == folder, "and it stays usable"
    assert await Fetching().folder() == folder


async def test_where_the_hub_is_not_to_be_asked_it_is_not(
    hub: HubStandIn, model: Path, peer: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = await Fetching(ask_peers=peer.ask).folder()
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    assert hub.requests == [] and hub.sent == []


async def test_without_the_hub_a_lie_ends_the_fetch(
    hub: HubStandIn, model: Path, elsewhere: Path, peer: Offering
) -> None:
    hub.close()
    break_contents(elsewhere)
    with pytest.raises(ModelError, match="cannot be reached"):
        await Fetching(ask_peers=peer.ask).folder()


async def test_without_the_hub_peers_that_disagree_are_not_believed(
    hub: HubStandIn, model: Path, elsewhere: Path, peer: Offering
) -> None:
    hub.close()

    async def ask(repo: str, revision: str | None) -> list[FilesOffer]:
        true = peer.offer(repo, revision)
        files = {**true.files, "tokenizer.json": true.files["config.json"]}
        return [true, true.model_copy(update={"files": files, "worker": "mac-2"})]

    with pytest.raises(ModelError, match="workers have different files of owner/model"):
        await Fetching(ask_peers=ask).folder()


async def test_another_commit_than_was_named_is_not_taken(
    hub: HubStandIn, model: Path, peer: Offering
) -> None:
    hub.close()

    async def ask(repo: str, revision: str | None) -> list[FilesOffer]:
        return [peer.offer(repo, None)]

    with pytest.raises(ModelError, match="cannot be reached"):
        await Fetching(revision="b" * 40, ask_peers=ask).folder()
