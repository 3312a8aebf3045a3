"""What is kept of texts outlives engines that are killed and workers that end; every answer stays
what it was."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.client import Cluster, connect
from shared.errors import ClusterError
from tests.processes import ClusterProcess, cluster_process, wait_for

pytestmark = pytest.mark.anyio

_ENDLESS = {"256": -100, "257": -100}
_PROMPT_TOKENS = 180
_KILLS = 5


def _settings(folder: Path) -> dict[str, str]:
    return {
        "CLUSTER__WORKER__KV_CACHE__DISK_MB": "200",
        "CLUSTER__WORKER__KV_CACHE__DISK_PATH": str(folder),
        "CLUSTER__WORKER__KV_CACHE__BLOCK_TOKENS": "16",
        "CLUSTER__WORKER__ENGINES__MAX_RESTARTS": "100",
        "CLUSTER__WORKER__ENGINES__RESTART_DELAY_MS": "0",
        "CLUSTER__WORKER__PRE_WARMING__PARALLEL": "false",
    }


@pytest.fixture
def cluster(tiny_model: Path, tmp_path: Path) -> Iterator[ClusterProcess]:
    with cluster_process(model=str(tiny_model), settings=_settings(tmp_path / "kv")) as cluster:
        yield cluster


def _prompt(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(_PROMPT_TOKENS)]


async def _ask(cluster: Cluster, prompt: list[int], **fields: Any) -> tuple[list[int], int]:
    """The tokens of the answer, and how many of the prompt were kept."""
    answer = await cluster.generate(
        prompt=prompt, **{"max_tokens": 12, "temperature": 0, "logit_bias": _ENDLESS, **fields}
    )
    return answer.choices[0].token_ids, answer.usage.cached_tokens


async def _ask_until_served(cluster: Cluster, prompt: list[int]) -> tuple[list[int], int]:
    """While the engine starts again, a request may be refused."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return await _ask(cluster, prompt, session_id="s")
        except ClusterError:
            assert time.monotonic() < deadline


def _engine(cluster: ClusterProcess) -> psutil.Process:
    found: psutil.Process = wait_for(lambda: cluster.find("worker.engine"), "an engine runs")[0]
    return found


async def test_an_engine_that_is_killed_finds_again_what_it_had_written(
    cluster: ClusterProcess,
) -> None:
    chance = random.Random(3)
    told: dict[int, list[int]] = {}
    kept_after_death = 0
    async with connect(cluster.url) as client:
        for round_number in range(_KILLS):
            for seed in range(round_number * 3, round_number * 3 + 3):
                told[seed], cached = await _ask(client, _prompt(seed), session_id=f"s{seed}")
                assert cached < 16, "nobody has begun like that"
            await asyncio.sleep(chance.uniform(0.0, 0.2))  # somewhere in its writing
            _engine(cluster).kill()
            for seed, tokens in told.items():
                again, cached = await _ask_until_served(client, _prompt(seed))
                assert again == tokens
                kept_after_death += cached > 0
    assert kept_after_death > _KILLS


async def test_a_new_cluster_on_the_same_folder_goes_on_where_the_old_one_was(
    tiny_model: Path, tmp_path: Path
) -> None:
    prompt = _prompt(1)
    settings = _settings(tmp_path / "kv")
    with cluster_process(model=str(tiny_model), settings=settings) as cluster:
        async with connect(cluster.url) as client:
            first, cached = await _ask(client, prompt, session_id="s")
            assert cached == 0
    turn = [*prompt, *first, 1, 2, 3]
    with cluster_process(model=str(tiny_model), settings=settings) as cluster:
        async with connect(cluster.url) as client:
            warm, cached = await _ask(client, turn, session_id="s")
            assert cached == len(prompt) + len(first) - 1  # the last token was never fed
    other = _settings(tmp_path / "other")
    with cluster_process(model=str(tiny_model), settings=other) as cluster:
        async with connect(cluster.url) as client:
            cold, cached = await _ask(client, turn, session_id="s")
            assert cached == 0
    assert warm == cold


async def test_two_workers_on_one_folder_say_so_and_serve(tiny_model: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path / "kv")
    with cluster_process(model=str(tiny_model), settings=settings) as cluster:
        async with connect(cluster.url) as client:
            first, _ = await _ask(client, _prompt(1))
        with cluster_process(model=str(tiny_model), settings=settings) as second:
            async with connect(second.url) as client:
                assert (await _ask(client, _prompt(1)))[0] == first
                deadline = time.monotonic() + 30
                while (problem := await _problem(client)) is None:
                    assert time.monotonic() < deadline
                assert "disk_path" in problem
        async with connect(cluster.url) as client:
            assert await _problem(client) is None


async def _problem(client: Cluster) -> str | None:
    (worker,) = (await client.health()).workers
    return worker.engines[0].kv_memory.problem
