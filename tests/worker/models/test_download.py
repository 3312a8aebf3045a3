"""The process that fetches a model: watched, ended, and heard to its last word."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.errors import ModelError
from shared.ids import is_hub_id
from tests.hub import HubStandIn
from tests.worker.models.fetching import (
    PATIENCE_S,
    PLACE,
    REPO,
    WEIGHTS,
    Fetching,
    fetching_processes,
    stalled,
)
from worker.models.download import download

pytestmark = pytest.mark.anyio


async def test_a_stalled_download_is_ended(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    hub.faults.stall[WEIGHTS] = PLACE
    error = await Fetching(stall_limit_s=2).error()
    assert "no progress for 2 s; the partial download is kept" in error
    assert fetching_processes() == []


async def test_a_cancelled_download_leaves_no_process_behind(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    async with stalled(hub, model):
        (child,) = fetching_processes()
    assert not child.is_running()


async def test_the_last_words_of_a_child_that_cannot_start_are_told(
    hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "soon")
    error = await Fetching().error()
    assert "ended unexpectedly, exit status 1: ValueError: invalid literal" in error


@contextmanager
def _child(hub: HubStandIn) -> Iterator["subprocess.Popen[bytes]"]:
    """The process without its parent's code, stalled."""
    hub.faults.stall[WEIGHTS] = PLACE
    command = [sys.executable, "-m", "worker.models.fetch_process", f"--repo={REPO}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert hub.stalled.wait(PATIENCE_S)
        try:
            yield child
        finally:
            child.kill()


def test_the_child_ends_when_its_parent_is_gone(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    with _child(hub) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 1


def test_the_child_ends_at_a_signal_but_not_at_the_terminals(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)
    with _child(hub) as child:
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) == -signal.SIGTERM


async def test_a_size_that_is_refused_ends_the_download(hub: HubStandIn, model: Path) -> None:
    hub.add(REPO, model)

    def refuse(total_bytes: int, missing_bytes: int) -> None:
        raise ModelError(f"{total_bytes} are too many")

    hub.faults.stall[WEIGHTS] = 0
    with pytest.raises(ModelError, match="are too many"):
        await download(
            REPO,
            None,
            trust_remote_code=False,
            stall_limit_s=PATIENCE_S,
            on_size=refuse,
            report=lambda share: None,
        )
    assert fetching_processes() == []


@pytest.mark.parametrize("text", ["a/b", "mlx-community/Qwen3-0.6B-4bit", "_/1", "a/" + "b" * 96])
def test_ids_of_the_hub_are_known(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "/", "a/", "/b", "a/b/c", "./b", "a/..", "a/b..c", "-a/b", "a/-b", "a/.b"),
        *("a/b-", "a/b.", "a/b.git", "a/b--c", "a/b c", "a/b\n", "ä/b", "a\\b/c", "~/b"),
        "a/" + "b" * 97,
    ],
)
def test_other_texts_are_no_ids(text: str) -> None:
    assert not is_hub_id(text)


async def test_what_is_no_id_is_refused_without_a_process() -> None:
    assert "../model is not an id of the hub" in await Fetching(repo="../model").error()
