"""Sessions of a whole cluster: turns that come alone, after restarts too; listed and removed."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.client import Cluster, connect
from shared.errors import StreamFailed
from tests.access.roles import as_client
from tests.processes import ClusterProcess, cluster_process
from tests.shared.cli.simulated_cluster import run
from tests.worker.running_agent import ENDLESS

pytestmark = pytest.mark.anyio

TURNS = ["My name is Ada. " * 8, "What is my name?", "And what else?"]


def _settings(folder: Path) -> dict[str, str]:
    return {
        "CLUSTER__WORKER__KV_CACHE__DISK_PATH": str(folder),
        "CLUSTER__WORKER__KV_CACHE__DISK_MB": "200",
        "CLUSTER__WORKER__KV_CACHE__BLOCK_TOKENS": "16",
    }


@pytest.fixture
def cluster(tiny_model: Path, tmp_path: Path) -> Iterator[ClusterProcess]:
    with cluster_process(model=str(tiny_model), settings=_settings(tmp_path / "kv")) as cluster:
        yield cluster


async def _turn(cluster: Cluster, *turns: str, **fields: Any) -> tuple[str, int]:
    """The answer, and how many tokens were kept; of the turns every other one is the model's."""
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": turn}
        for number, turn in enumerate(turns)
    ]
    answer = await cluster.generate(
        messages=messages, max_tokens=12, temperature=0, logit_bias=ENDLESS, **fields
    )
    return answer.text, answer.usage.cached_tokens


async def _whole(cluster: Cluster) -> list[str]:
    """The answers to a conversation that is sent whole with each turn."""
    said: list[str] = []
    for turn in TURNS:
        answer, _ = await _turn(cluster, *said, turn)
        said += [turn, answer]
    return said[1::2]


async def test_turns_that_come_alone_are_answered_as_in_the_whole_conversation(
    cluster: ClusterProcess,
) -> None:
    async with connect(as_client(cluster.url)) as client:
        alone = [await _turn(client, turn, session_id="s") for turn in TURNS]
        assert [text for text, _ in alone] == await _whole(client)
    assert all(kept > len(TURNS[0]) // 2 for _, kept in alone[1:])


async def test_a_session_goes_on_after_a_restart_of_everything(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = _settings(tmp_path / "kv")
    answers: list[tuple[str, int]] = []
    for turn in TURNS:
        with cluster_process(model=str(tiny_model), settings=settings) as cluster:
            async with connect(as_client(cluster.url)) as client:
                history = {"history": "kept"} if answers else {}
                answers.append(await _turn(client, turn, session_id="s", **history))
                if len(answers) == len(TURNS):
                    assert [text for text, _ in answers] == await _whole(client)
    assert all(kept > len(TURNS[0]) // 2 for _, kept in answers[1:])


async def test_sessions_are_listed_pinned_and_removed(cluster: ClusterProcess) -> None:
    async with connect(as_client(cluster.url)) as client:
        for session in ("s", "t"):
            await _turn(client, TURNS[0], session_id=session)  # the same text in both
            listed = await _listed(cluster, lambda sessions: all(s["tokens"] for s in sessions))
        assert [session["id"] for session in listed] == ["t", "s"]
        assert all(session["turns"] == 1 and session["continuable"] for session in listed)
        assert all(session["memory_bytes"] > 0 for session in listed)

        assert (await run("sessions", "pin", "s", "--nats", cluster.url)).status == 0
        ran = await run("sessions", "--nats", cluster.url, columns=120)
        assert [line.split()[0] for line in ran.out.splitlines()] == ["session", "t", "s"]
        assert ran.out.splitlines()[2].endswith("pinned")

        ran = await run("sessions", "rm", "s", "--nats", cluster.url)
        assert ran.out == "worker-1: s removed\n"
        assert [session["id"] for session in await _listed(cluster)] == ["t"]
        with pytest.raises(StreamFailed, match="not known") as error:
            await _turn(client, TURNS[1], session_id="s", history="kept")
        assert error.value.code == "unknown_session"
        ran = await run("sessions", "rm", "s", "--nats", cluster.url)
        assert ran.status == 1 and "no worker stores a session 's'" in ran.err


async def _listed(cluster: ClusterProcess, until: Any = lambda _: True) -> list[dict[str, Any]]:
    """The sessions, once they are as they will be."""
    deadline = time.monotonic() + 30
    while True:
        ran = await run("sessions", "--json", "--nats", cluster.url)
        sessions: list[dict[str, Any]] = json.loads(ran.out)["sessions"]
        if until(sessions):
            return sessions
        assert time.monotonic() < deadline, json.dumps(sessions)
