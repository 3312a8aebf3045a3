"""What is kept of texts outlives engines that are killed and workers that end; every answer stays
what it was."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.client import connect
from tests.access.roles import as_client
from tests.processes import ClusterProcess, cluster_process
from tests.tiers import examples
from tests.worker.kv_memory.cached_prompts import (
    ask,
    ask_until_served,
    engine_of,
    kept_by,
    random_prompt,
)

pytestmark = pytest.mark.anyio

_PROMPT_TOKENS = 180
_KILLS = examples(2, 5)


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
    return random_prompt(seed, _PROMPT_TOKENS)


async def test_an_engine_that_is_killed_finds_again_what_it_had_written(
    cluster: ClusterProcess,
) -> None:
    chance = random.Random(3)
    told: dict[int, list[int]] = {}
    kept_after_death = 0
    async with connect(as_client(cluster.url)) as client:
        for round_number in range(_KILLS):
            for seed in range(round_number * 3, round_number * 3 + 3):
                told[seed], cached = await ask(client, _prompt(seed), session_id=f"s{seed}")
                assert cached < 16, "nobody has begun like that"
            await asyncio.sleep(chance.uniform(0.0, 0.2))  # somewhere in its writing
            engine_of(cluster).kill()
            for seed, tokens in told.items():
                again, cached = await ask_until_served(client, _prompt(seed), session_id="s")
                assert again == tokens
                kept_after_death += cached > 0
    assert kept_after_death > _KILLS


async def test_two_workers_on_one_folder_say_so_and_serve(tiny_model: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path / "kv")
    with cluster_process(model=str(tiny_model), settings=settings) as cluster:
        async with connect(as_client(cluster.url)) as client:
            first, _ = await ask(client, _prompt(1))
        with cluster_process(model=str(tiny_model), settings=settings) as second:
            async with connect(as_client(second.url)) as client:
                assert (await ask(client, _prompt(1)))[0] == first
                deadline = time.monotonic() + 30
                while (problem := (await kept_by(client)).problem) is None:
                    assert time.monotonic() < deadline
                assert "disk_path" in problem
        async with connect(as_client(cluster.url)) as client:
            assert (await kept_by(client)).problem is None
