"""The adaptive batch size under a load that changes: does it reach its target, and stay?

    python -m benchmarks.adaptive [--target 100] [--seconds 90]

One worker, more clients than rows, in a closed loop of short prompts and answers of 60 tokens.
Three phases of the same length: the batch comes down from its maximum; a competing program takes
both cores for a while, so that it comes down further; that ends, and it rises to its target from
below. Of each phase: when the average step latency came within the tolerance for good, or was as
near as the next row would allow, and how often the size changed a minute afterwards.
Writes results/adaptive.json.
"""

import argparse
import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import local_cluster
from benchmarks.measures import print_table, save
from shared.client import Cluster, connect
from worker.machine import available_cores

_CLIENTS = 40
_MAX_TOKENS = 60
_LOOK_S = 0.5
_SETTLING_S = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    limit: int
    rows: int
    step_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=float, default=100, help="ms a step")
    parser.add_argument("--seconds", type=float, default=90, help="of each phase")
    arguments = parser.parse_args()
    settings = {
        "CLUSTER__WORKER__ADAPTIVE_BATCHING__ENABLED": "true",
        "CLUSTER__WORKER__ADAPTIVE_BATCHING__TARGET_STEP_LATENCY_MS": str(arguments.target),
    }
    with local_cluster(settings=settings) as local:
        phases = asyncio.run(_phases(local.url, arguments.seconds))
    rows = [_row(name, samples, arguments.target) for name, samples in phases.items()]
    print_table(
        f"target {arguments.target:g} ms a step, {_CLIENTS} clients",
        ("phase", "rows", "median step, ms", "settled after, s", "changes a minute then"),
        rows,
    )
    save("adaptive", {name: [asdict(s) for s in samples] for name, samples in phases.items()})


async def _phases(url: str, seconds: float) -> dict[str, list[Sample]]:
    phases: dict[str, list[Sample]] = {}
    prompts = mixed_prompts(64, 20, 40)
    async with connect(url) as cluster, asyncio.TaskGroup() as tasks:
        clients = [
            tasks.create_task(_client(cluster, prompts[number % len(prompts)]))
            for number in range(_CLIENTS)
        ]
        phases["from above"] = await _watch(cluster, seconds)
        with _competitor():
            phases["beside another program"] = await _watch(cluster, seconds)
        phases["from below"] = await _watch(cluster, seconds)
        for client in clients:
            client.cancel()
    return phases


@contextlib.contextmanager
def _competitor() -> Iterator[None]:
    """One busy loop a core."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(available_cores())]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


async def _client(cluster: Cluster, prompt: list[int]) -> None:
    while True:
        await cluster.generate(prompt=prompt, max_tokens=_MAX_TOKENS, timeout_ms=600_000)


async def _watch(cluster: Cluster, seconds: float) -> list[Sample]:
    started = time.perf_counter()
    samples = []
    while (now := time.perf_counter() - started) < seconds:
        (batch,) = (await cluster.health()).workers[0].engines[0].batches
        samples.append(Sample(now, batch.limit, batch.rows, batch.step_ms))
        await asyncio.sleep(_LOOK_S)
    return samples


def _row(name: str, samples: list[Sample], target_ms: float) -> tuple[str, ...]:
    last = [sample for sample in samples if sample.at_s >= _SETTLING_S]
    limits = sorted(sample.limit for sample in last)
    steps = sorted(sample.step_ms for sample in last)
    changes = sum(one.limit != other.limit for one, other in itertools.pairwise(last))
    minutes = (last[-1].at_s - last[0].at_s) / 60
    return (
        name,
        f"{limits[len(limits) // 2]} ({limits[0]}-{limits[-1]})",
        f"{steps[len(steps) // 2]:.0f} ({steps[0]:.0f}-{steps[-1]:.0f})",
        f"{_settled_s(samples):.1f}",
        f"{changes / minutes:.1f}",
    )


def _settled_s(samples: list[Sample]) -> float:
    """When the size came within a fifth, and at least two rows, of what it is in the second
    half, and did not leave it before that half."""
    half = samples[len(samples) // 2 :]
    usual = sorted(sample.limit for sample in half)[len(half) // 2]
    near = max(2, usual // 5)
    outside = [s.at_s for s in samples[: len(samples) // 2] if abs(s.limit - usual) > near]
    return max(outside, default=0.0)


if __name__ == "__main__":
    main()
