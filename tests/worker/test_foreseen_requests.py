"""A worker whose only place is taken has the next prompt's blocks read meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.messages.engine_status import PrefixCacheStatus
from tests.processes import RunningNats
from tests.worker.engine.watched_network import random_ids
from tests.worker.running_agent import RunningAgent, running_agent

pytestmark = pytest.mark.anyio

_BLOCK = 16
_PROMPT = random_ids(200, 8)
_BLOCKS = len(_PROMPT) // _BLOCK
_LONG = 900
_OTHER = random_ids(20, 9)
"""Begins like nothing that is kept: not the text that a model generates a token for at its load."""


@asynccontextmanager
async def _worker(nats_url: str, model: Path, folder: Path) -> AsyncIterator[RunningAgent]:
    async with running_agent(
        nats_url,
        {"tiny": model},
        continuous_batching={"max_batch_size": 1},
        kv_cache={"disk_mb": 100, "disk_path": str(folder), "block_tokens": _BLOCK},
    ) as worker:
        yield worker


def _kept(worker: RunningAgent) -> PrefixCacheStatus:
    return worker.reports()[-1][1].engines[0].kv_memory


async def test_what_waits_is_read_while_another_runs(
    nats_server: RunningNats, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kv"
    async with _worker(nats_server.url, tiny_model, folder) as worker:
        stream = await worker.start(prompt=_PROMPT)
        assert (await stream.done()).usage.cached_tokens == 0
        cold = stream.token_ids()
        await worker.wire.wait(lambda: _kept(worker).written_blocks >= _BLOCKS)
    async with _worker(nats_server.url, tiny_model, folder) as worker:
        await worker.wire.wait(lambda: _kept(worker).disk_bytes > 0)
        running = await worker.start(prompt=_OTHER, max_tokens=_LONG)
        await running.started()
        waiting = await worker.start(prompt=_PROMPT)
        await worker.wire.wait(lambda: _kept(worker).promoted_blocks >= _BLOCKS)
        assert not running.ends and not waiting.token_ids()
        await worker.cancel_all(running)
        assert (await waiting.done()).usage.cached_tokens >= _BLOCKS * _BLOCK
        assert waiting.token_ids() == cold
        await worker.until_reported(lambda report: report.engines[0].kv_memory.hits == 1)
        assert _kept(worker).read_blocks == _kept(worker).promoted_blocks == _BLOCKS
