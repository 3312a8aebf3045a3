"""The adaptive batch size under a load that changes: does it reach its target, and stay?

    python -m benchmarks.adaptive [--factor 2.5] [--seconds 90]

One worker whose engine has one thread, more clients than rows, in a closed loop of short prompts
and answers of 60 tokens. The target is so many times what a step of one row takes, as measured
first; the tolerance a fifth of it. Three phases of the same length: from the start; beside other
programs that take a part of the machine, so that steps are slower and the batch must come down;
without them again, so that it must rise. Of each phase: when the average step first was within the
tolerance, and of the time after the first 30 seconds the rows, the step, how long it was within the
tolerance, and how often the size changed a minute.
Writes results/adaptive.json.
"""

import argparse
import asyncio
import contextlib
import itertools
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.children import started
from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import local_cluster
from benchmarks.measures import print_table, save, spread
from shared.client import Cluster, connect
from worker.host.machine import available_cores

_LOOK_S = 0.5
_TOLERANCE = 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    limit: int
    rows: int
    step_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=float, default=2.5, help="target, in steps of one row")
    parser.add_argument("--seconds", type=float, default=90, help="of each phase")
    parser.add_argument("--settling", type=float, default=30, help="seconds of it not counted")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=60, help="of each answer")
    arguments = parser.parse_args()
    threads = {"CLUSTER__WORKER__ENGINES__THREADS": "1"}
    with local_cluster(settings=threads) as local:
        alone_ms = asyncio.run(_step_alone_ms(local.url, arguments.max_tokens))
    target_ms = arguments.factor * alone_ms
    settings = {
        "CLUSTER__WORKER__ADAPTIVE_BATCHING__ENABLED": "true",
        "CLUSTER__WORKER__ADAPTIVE_BATCHING__OBJECTIVE": "latency",
        "CLUSTER__WORKER__ADAPTIVE_BATCHING__TARGET_STEP_LATENCY_MS": f"{target_ms:.1f}",
        "CLUSTER__WORKER__ADAPTIVE_BATCHING__TOLERANCE_MS": f"{_TOLERANCE * target_ms:.1f}",
    }
    with local_cluster(settings={**threads, **settings}) as local:
        phases = asyncio.run(_phases(local.url, arguments))
    print_table(
        f"one row {alone_ms:.0f} ms a step, target {target_ms:.0f} ms, {arguments.clients} clients",
        ("phase", "reached after, s", "rows", "step, ms", "within", "changes a minute"),
        [_row(name, each, target_ms, arguments.settling) for name, each in phases.items()],
    )
    samples = {name: [asdict(each) for each in some] for name, some in phases.items()}
    save("adaptive", {"alone_ms": alone_ms, "target_ms": target_ms, "phases": samples})


async def _step_alone_ms(url: str, max_tokens: int) -> float:
    async with connect(url) as cluster:
        (prompt,) = mixed_prompts(1, 30, 30)
        answer = await cluster.generate(prompt=prompt, max_tokens=max_tokens, temperature=0)
        return answer.timings.decode_ms / (answer.usage.completion_tokens - 1)


async def _phases(url: str, arguments: argparse.Namespace) -> dict[str, list[Sample]]:
    phases: dict[str, list[Sample]] = {}
    prompts = mixed_prompts(64, 20, 40)
    times, tokens = (arguments.seconds, arguments.settling), arguments.max_tokens
    async with connect(url) as cluster, asyncio.TaskGroup() as tasks:
        clients = [
            tasks.create_task(_client(cluster, prompts[number % len(prompts)], tokens))
            for number in range(arguments.clients)
        ]
        phases["from the start"] = await _watch(cluster, *times)
        with _other_programs():
            phases["from above, beside others"] = await _watch(cluster, *times)
        phases["from below"] = await _watch(cluster, *times)
        for client in clients:
            client.cancel()
    return phases


@contextlib.contextmanager
def _other_programs() -> Iterator[None]:
    """Two busy loops a core, in sessions of their own, or Linux gives them one share together."""
    command = [sys.executable, "-c", "while True: pass"]
    own_session: dict[str, Any] = {"process_group": None, "start_new_session": True}
    with contextlib.ExitStack() as stack:
        for _ in range(2 * available_cores()):
            stack.enter_context(started(command, **own_session))
        yield


async def _client(cluster: Cluster, prompt: list[int], max_tokens: int) -> None:
    while True:
        await cluster.generate(prompt=prompt, max_tokens=max_tokens, timeout_ms=600_000)


async def _watch(cluster: Cluster, seconds: float, settling_s: float) -> list[Sample]:
    """For so long, and until there are two samples that count."""
    started = time.perf_counter()
    samples: list[Sample] = []
    while (now := time.perf_counter() - started) < seconds or (
        sum(sample.at_s >= settling_s for sample in samples) < 2
    ):
        batches = (await cluster.health()).workers[0].engines[0].batches
        # At first the engine has not told yet.
        samples.extend(Sample(now, b.limit, b.rows, b.step_ms) for b in batches)
        await asyncio.sleep(_LOOK_S)
    return samples


def _row(name: str, samples: list[Sample], target_ms: float, settling_s: float) -> tuple[str, ...]:
    reached_s = next((s.at_s for s in samples if _within(s, target_ms)), math.inf)
    last = [sample for sample in samples if sample.at_s >= settling_s]
    limits = spread(sample.limit for sample in last)
    steps = spread(sample.step_ms for sample in last)
    within = sum(_within(sample, target_ms) for sample in last) / len(last)
    changes = sum(one.limit != other.limit for one, other in itertools.pairwise(last))
    minutes = (last[-1].at_s - last[0].at_s) / 60
    return (
        name,
        f"{reached_s:.1f}",
        f"{limits['median']:g} ({limits['min']:g}-{limits['max']:g})",
        f"{steps['median']:.0f} ({steps['min']:.0f}-{steps['max']:.0f})",
        f"{within:.0%}",
        f"{changes / minutes:.1f}",
    )


def _within(sample: Sample, target_ms: float) -> bool:
    """Whether the average step of a full batch is within the tolerance."""
    full = sample.rows >= sample.limit - 1
    return full and abs(sample.step_ms - target_ms) <= _TOLERANCE * target_ms


if __name__ == "__main__":
    main()
