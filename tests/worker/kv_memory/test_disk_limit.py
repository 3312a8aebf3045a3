"""Large blocks, written as fast as an engine computes them: their folder stays within its bounds,
and engines that are killed in the middle of a file do no harm."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.client import Cluster, connect
from shared.errors import ClusterError
from tests.access.roles import as_client
from tests.models import make_tiny_model
from tests.processes import ClusterProcess, cluster_process
from tests.tiers import examples
from tests.worker.kv_memory.cached_prompts import (
    ask,
    ask_until_served,
    engine_of,
    kept_by,
    random_prompt,
)
from tests.worker.kv_memory.watched_folder import WatchedFolder, bytes_now, unfinished, whole

pytestmark = pytest.mark.anyio

_MB = 1_000_000
_CAP_MB = examples(80, 200)
_TIMES_THE_CAP = examples(4, 10)
_BLOCK_TOKENS = 16
_BLOCKS = 8
_PROMPT_TOKENS = _BLOCKS * _BLOCK_TOKENS + 1
_ANSWER_TOKENS = 12
"""In each step a block is handed over to be written: in so many all of a prompt."""
_KILLS = examples(5, 20)
_LATEST_S = 0.1
_LOOKS_S = 0.001
_LIMIT_S = 300.0


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token's keys and values take 262 kB, and hardly any time."""
    folder = tmp_path_factory.mktemp("models") / "wide"
    return make_tiny_model(folder, kv_heads=64, head_dim=256)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the only engine."""
    return tmp_path / "kv" / "engine-0"


@pytest.fixture
def cluster(wide_model: Path, folder: Path) -> Iterator[ClusterProcess]:
    """Its memory holds half of what the disk may, so that what is older comes from there. On a busy
    machine two threads of OpenBLAS wait for each other most of the time."""
    settings = {
        "CLUSTER__WORKER__KV_CACHE__DISK_MB": str(_CAP_MB),
        "CLUSTER__WORKER__KV_CACHE__DISK_PATH": str(folder.parent),
        "CLUSTER__WORKER__KV_CACHE__MEMORY_MB": str(_CAP_MB // 2),
        "CLUSTER__WORKER__KV_CACHE__BLOCK_TOKENS": str(_BLOCK_TOKENS),
        "CLUSTER__WORKER__ENGINES__MAX_RESTARTS": "100",
        "CLUSTER__WORKER__ENGINES__RESTART_DELAY_MS": "0",
    }
    with cluster_process(model=str(wide_model), settings=settings) as cluster:
        yield cluster


def _prompt(seed: int) -> list[int]:
    return random_prompt(seed, _PROMPT_TOKENS)


async def _ask(client: Cluster, seed: int) -> tuple[list[int], int]:
    return await ask(client, _prompt(seed), max_tokens=_ANSWER_TOKENS)


@pytest.mark.timeout(600)
async def test_the_folder_never_holds_more_than_it_may(
    cluster: ClusterProcess, folder: Path
) -> None:
    deadline = time.monotonic() + _LIMIT_S
    told: list[list[int]] = []
    async with connect(as_client(cluster.url)) as client:
        with WatchedFolder(folder) as watched:
            while (await kept_by(client)).written_bytes < _TIMES_THE_CAP * _CAP_MB * _MB:
                assert time.monotonic() < deadline
                tokens, cached = await _ask(client, seed=len(told))
                assert cached < _BLOCK_TOKENS, "nobody has begun like that"
                told.append(tokens)
        assert 0.9 * _CAP_MB * _MB < watched.most_bytes <= _CAP_MB * _MB
        assert watched.samples > 100
        seeds = itertools.cycle((0, 1))  # memory holds one of them and a bit, the disk both
        while (figures := await kept_by(client)).read_blocks == 0:
            assert time.monotonic() < deadline
            seed = next(seeds)
            again, _ = await _ask(client, seed)
            assert again == told[seed]
        assert figures.disk_evictions > 0
        assert figures.problem is None


@pytest.fixture
async def truths(wide_model: Path) -> list[list[int]]:
    """The answers of an engine that nobody disturbs and that keeps nothing."""
    settings = {
        "CLUSTER__WORKER__KV_CACHE__ENABLED": "false",
    }
    with cluster_process(model=str(wide_model), settings=settings) as cluster:
        async with connect(as_client(cluster.url)) as client:
            return [(await _ask(client, seed))[0] for seed in range(_KILLS)]


@pytest.mark.long_form
@pytest.mark.timeout(900)
async def test_engines_that_are_killed_in_the_middle_of_files_do_no_harm(
    cluster: ClusterProcess, folder: Path, truths: list[list[int]]
) -> None:
    chance = random.Random(5)
    in_a_file = before_the_last = taken_up = 0
    async with connect(as_client(cluster.url)) as client:
        for seed, truth in enumerate(truths):
            engine, before = engine_of(cluster), set(whole(folder))
            async with asyncio.TaskGroup() as group:
                group.create_task(_ask_in_vain(client, seed))
                await _writing(folder, before, after_s=chance.uniform(0.0, _LATEST_S))
                engine.kill()
                engine.wait()
                in_a_file += bool(unfinished(folder))
                before_the_last += len(set(whole(folder)) - before) < _BLOCKS
                assert bytes_now(folder) <= _CAP_MB * _MB
            again, cached = await ask_until_served(client, _prompt(seed), max_tokens=_ANSWER_TOKENS)
            assert again == truth
            taken_up += cached >= _BLOCK_TOKENS
            earlier = chance.randrange(seed + 1)
            assert (await _ask(client, earlier))[0] == truths[earlier]
            figures = await kept_by(client)
            assert (figures.broken_files, figures.problem) == (0, None)
    assert in_a_file > 0
    assert before_the_last > 0
    assert taken_up > 0


async def _ask_in_vain(client: Cluster, seed: int) -> None:
    """Of an engine that may be killed meanwhile."""
    with contextlib.suppress(ClusterError):
        await _ask(client, seed)


async def _writing(folder: Path, before: set[Path], after_s: float) -> None:
    """Return so long after the first file has begun; in the middle of another one, if any comes
    soon."""
    assert await _seen(lambda: unfinished(folder) or set(whole(folder)) - before, _LIMIT_S)
    await asyncio.sleep(after_s)
    await _seen(lambda: unfinished(folder), _LATEST_S)


async def _seen(condition: Callable[[], object], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        await asyncio.sleep(_LOOKS_S)
    return False
