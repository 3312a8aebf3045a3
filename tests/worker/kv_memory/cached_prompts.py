"""Asking for what is kept of prompts, while engines die and come back."""

import random
import time
from typing import Any

import psutil

from shared.client import Cluster
from shared.errors import ClusterError
from shared.messages.engine_status import PrefixCacheStatus
from tests.processes import ClusterProcess, wait_for

_ENDLESS = {"256": -100, "257": -100}
_LIMIT_S = 60.0


def random_prompt(seed: int, tokens: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(tokens)]


async def ask(cluster: Cluster, prompt: list[int], **fields: Any) -> tuple[list[int], int]:
    """The tokens of the answer, and how many of the prompt were kept."""
    answer = await cluster.generate(
        prompt=prompt, **{"max_tokens": 12, "temperature": 0, "logit_bias": _ENDLESS, **fields}
    )
    return answer.choices[0].token_ids, answer.usage.cached_tokens


async def ask_until_served(
    cluster: Cluster, prompt: list[int], **fields: Any
) -> tuple[list[int], int]:
    """While the engine starts again, a request may be refused."""
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            return await ask(cluster, prompt, **fields)
        except ClusterError:
            assert time.monotonic() < deadline


def engine_of(cluster: ClusterProcess) -> psutil.Process:
    found: psutil.Process = wait_for(lambda: cluster.find("worker.engine"), "an engine runs")[0]
    return found


async def kept_by(cluster: Cluster) -> PrefixCacheStatus:
    """The figures of the only engine of the only worker."""
    (worker,) = (await cluster.health()).workers
    return worker.engines[0].kv_memory
