"""A real cluster for a benchmark: `cluster up` as a child, ended with it."""

import asyncio
import contextlib
import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from benchmarks.children import started
from benchmarks.measures import Run, StreamClock, cpu_seconds
from shared.client import Cluster
from tests.access.roles import cluster_up, register

_AS_PEERS_DO = {
    "CLUSTER__WORKER__ADAPTIVE_BATCHING__ENABLED": "false",
    "CLUSTER__WORKER__ENGINES__COUNT": "1",
}
"""Peers decode all rows at once, in one process, however long a step takes: so do we here."""


_PATIENCE_MS = 3_600_000
"""A slow machine is to be measured, not refused."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running cluster. `processes`: pid by name (nats, controller-1, worker-1, engine-1)."""

    url: str
    processes: dict[str, int]


@contextlib.contextmanager
def local_cluster(
    *,
    workers: int = 1,
    model: str | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
    secured: bool = False,
) -> Iterator[LocalCluster]:
    """Start one on a free port, and end it; `settings` are environment variables. One engine, and
    batches as large as `max_batch_size` says, where they say nothing else.

    Args:
        secured: NATS has TLS and a key for everybody (`tests.access.roles.as_client`).
    """
    command = cluster_up(Path(sysconfig.get_path("scripts")), secured)
    command += ["--workers", str(workers), *(["--model", model] if model else [])]
    settings = {**_AS_PEERS_DO, **settings}
    with started(command, settings, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the cluster did not start")
        url = json.loads(line)["nats_url"]
        register(url, secured)
        yield LocalCluster(url, _processes(process.pid))


def kept_on_disk(folder: str | Path) -> dict[str, str]:
    """The settings of a worker that keeps what it computed in a folder, whatever other settings
    say."""
    return {
        "CLUSTER__WORKER__KV_CACHE__DISK_PATH": str(folder),
        "CLUSTER__WORKER__KV_CACHE__DISK_MB": "20480",
    }


async def generate(
    cluster: Cluster,
    local: LocalCluster,
    prompts: Sequence[list[int]],
    max_tokens: int,
    fields: Sequence[Mapping[str, Any]] = (),
) -> tuple[Run, list[list[int]]]:
    """All at once, over one connection.

    Args:
        fields: of each request; greedy where there are none.
    """
    run = Run()
    processes = {**local.processes, "client": os.getpid()}
    before, started = cpu_seconds(processes), time.perf_counter()
    hows = fields or [{"temperature": 0}] * len(prompts)
    tokens = await asyncio.gather(
        *(
            _stream(cluster, run, prompt, max_tokens, how)
            for prompt, how in zip(prompts, hows, strict=True)
        )
    )
    run.seconds = time.perf_counter() - started
    after = cpu_seconds(processes)
    run.cpu_s = {name: after[name] - before[name] for name in processes}
    return run, list(tokens)


async def _stream(
    cluster: Cluster, run: Run, prompt: list[int], max_tokens: int, how: Mapping[str, Any]
) -> list[int]:
    clock = StreamClock(run)
    tokens: list[int] = []
    fields = {"timeout_ms": _PATIENCE_MS, "max_tokens": max_tokens, **how}
    async for chunk in cluster.stream(prompt=prompt, **fields):
        tokens.extend(chunk.token_ids)
        clock.tick(len(chunk.token_ids))
    return tokens


def _processes(parent: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for child in psutil.Process(parent).children(recursive=True):
        arguments = child.cmdline()
        if "worker.engine" in arguments:
            found[f"engine-{sum(name.startswith('engine') for name in found) + 1}"] = child.pid
        elif "--id" in arguments:
            found[arguments[arguments.index("--id") + 1]] = child.pid
        elif arguments and Path(arguments[0]).name == "nats-server":
            found["nats"] = child.pid
    return found
