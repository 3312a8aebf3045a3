"""Four times what the worker can serve, a tenth of it urgent: what becomes of whom?

    python -m benchmarks.overload [--factor 4] [--seconds 60] [--depth N] [--reject]
                                  [--max-wait-ms N]

One worker with default settings, but a queue of as many requests as it serves in a second, where
the newest of the lowest priority goes (`reject_when_full: false`), so that priorities decide.
First a request alone (median of nine), then what a closed loop of many clients gets served in a
second; then requests come at random (Poisson) at that rate times the factor, a tenth with high
priority. Every request must end once: with its answer or with its error. Beside the high ones
stand the answers alone. After it, for five seconds, nothing is sent; then a request alone again.
Writes results/overload.json.
"""

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import LocalCluster, local_cluster
from benchmarks.measures import print_table, save
from shared.client import Cluster, connect
from shared.errors import StreamFailed
from shared.messages.worker_report import WorkerReport

_URGENT_SHARE = 0.1
_QUEUE_S = 1.0


@dataclass(slots=True)
class Outcome:
    """What became of one request; `code` of its error, if it had one."""

    priority: str
    seconds: float
    first_token_s: float
    code: str | None = None
    retry_after_ms: int | None = None


@dataclass(slots=True)
class Result:
    alone_s: float
    first_token_alone_s: float
    capacity_per_s: float
    outcomes: list[Outcome] = field(default_factory=list)
    highest_memory_bytes: int = 0
    hard_limit_bytes: int = 0
    same_processes: bool = False
    first_token_after_s: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=float, default=4)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--calibration", type=float, default=20, help="seconds of the closed loop")
    parser.add_argument("--clients", type=int, default=24, help="of the closed loop")
    parser.add_argument("--rest", type=float, default=5, help="seconds without requests after it")
    parser.add_argument("--alone", type=int, default=9, help="requests alone before it")
    parser.add_argument("--max-tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--depth", type=int, help="of the queue; default: a second's work")
    parser.add_argument("--reject", action="store_true", help="reject_when_full: true")
    parser.add_argument("--max-wait-ms", type=int, help="of the queue; default: no bound")
    arguments = parser.parse_args()
    adaptive = {"CLUSTER__WORKER__ADAPTIVE_BATCHING__ENABLED": "true"}
    with local_cluster(settings=adaptive) as local:
        capacity = asyncio.run(_capacity(local.url, arguments))
    depth = arguments.depth or math.ceil(_QUEUE_S * capacity)
    queue = {
        "CLUSTER__WORKER__REQUEST_QUEUE__MAX_DEPTH": str(depth),
        "CLUSTER__WORKER__REQUEST_QUEUE__MAX_WAIT_MS": json.dumps(arguments.max_wait_ms),
        "CLUSTER__WORKER__REQUEST_QUEUE__REJECT_WHEN_FULL": json.dumps(arguments.reject),
    }
    with local_cluster(settings={**adaptive, **queue}) as local:
        rate = arguments.factor * capacity
        result = asyncio.run(_overload(local, capacity, rate, arguments))
    _report(result, rate, depth)


async def _capacity(url: str, arguments: argparse.Namespace) -> float:
    """Requests a second that many clients in a closed loop are served: at least one of all."""
    served, took_s = 0, float(arguments.calibration)
    prompts = mixed_prompts(256, 20, 60, seed=1)
    async with connect(url) as cluster:
        await _alone(cluster, arguments)
        started = time.perf_counter()

        async def client(number: int) -> None:
            nonlocal served, took_s
            for prompt in prompts[number :: arguments.clients]:
                await cluster.generate(prompt=prompt, max_tokens=arguments.max_tokens)
                now_s = time.perf_counter() - started
                if now_s > arguments.calibration and served:
                    return
                served, took_s = served + 1, max(took_s, now_s)

        async with asyncio.TaskGroup() as tasks:
            for number in range(arguments.clients):
                tasks.create_task(client(number))
    return served / took_s


async def _overload(
    local: LocalCluster, capacity: float, rate: float, arguments: argparse.Namespace
) -> Result:
    draw = random.Random(0)
    prompts, tokens = mixed_prompts(256, 20, 60), arguments.max_tokens
    async with connect(local.url) as cluster:
        alone = await _alone(cluster, arguments)
        result = Result(
            alone_s=statistics.median(one.seconds for one in alone),
            first_token_alone_s=statistics.median(one.first_token_s for one in alone),
            capacity_per_s=capacity,
        )
        until = time.perf_counter() + arguments.seconds
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_watch(cluster, result))
            async with asyncio.TaskGroup() as requests:
                while time.perf_counter() < until:
                    priority = "high" if draw.random() < _URGENT_SHARE else "medium"
                    prompt = draw.choice(prompts)
                    asking = _ask(cluster, prompt, tokens, priority, result.outcomes)
                    requests.create_task(asking)
                    await asyncio.sleep(draw.expovariate(rate))
                await asyncio.sleep(arguments.rest)
                after = await _ask(cluster, prompts[0], tokens, "medium", [])
                result.first_token_after_s = after.first_token_s
            watching.cancel()
    result.same_processes = all(_lives(pid) for pid in local.processes.values())
    return result


async def _alone(cluster: Cluster, arguments: argparse.Namespace) -> list[Outcome]:
    prompts = mixed_prompts(arguments.alone, 20, 60, seed=2)
    tokens = arguments.max_tokens
    return [await _ask(cluster, prompt, tokens, "high", []) for prompt in prompts]


async def _ask(
    cluster: Cluster, prompt: list[int], max_tokens: int, priority: str, outcomes: list[Outcome]
) -> Outcome:
    started = time.perf_counter()
    outcome = Outcome(priority, 0.0, 0.0)
    fields: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "priority": priority}
    # It would end some answers early, which are then faster than others.
    fields["logit_bias"] = {"2": -100, "0": -100}
    try:
        async for chunk in cluster.stream(**fields):
            if chunk.token_ids and not outcome.first_token_s:
                outcome.first_token_s = time.perf_counter() - started
    except StreamFailed as error:
        outcome.code, outcome.retry_after_ms = error.code, error.retry_after_ms
    outcome.seconds = time.perf_counter() - started
    outcomes.append(outcome)
    return outcome


async def _watch(cluster: Cluster, result: Result) -> None:
    while True:
        worker: WorkerReport = (await cluster.health()).workers[0]
        result.highest_memory_bytes = max(result.highest_memory_bytes, worker.memory.own_bytes)
        result.hard_limit_bytes = worker.memory.hard_bytes
        await asyncio.sleep(0.5)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _report(result: Result, rate: float, depth: int) -> None:
    rows = []
    for priority in ("high", "medium"):
        mine = [one for one in result.outcomes if one.priority == priority]
        served = sorted(one.seconds for one in mine if one.code is None)
        codes = Counter(one.code for one in mine if one.code is not None)
        within = sum(seconds <= 3 * result.alone_s for seconds in served)
        told = [one.retry_after_ms for one in mine if one.code == "queue_full"]
        rows.append(
            (
                priority,
                f"{len(mine)}",
                f"{len(served)}",
                f"{within / max(1, len(mine)):.1%}",
                f"{_share(served, 0.5):.2f}",
                f"{_share(served, 0.99):.2f}",
                ", ".join(f"{code} {count}" for code, count in codes.items()) or "none",
                f"{sum(wait is not None for wait in told)} of {len(told)}",
            )
        )
    print_table(
        f"{rate:.1f} requests/s at a capacity of {result.capacity_per_s:.1f}, a queue of {depth}; "
        f"alone {result.alone_s:.2f} s",
        ("priority", "sent", "answered", "within 3 times alone", "p50 s", "p99 s", "errors",
         "told when to come again"),
        rows,
    )  # fmt: skip
    print(
        f"memory at most {result.highest_memory_bytes / 1e9:.2f} GB of "
        f"{result.hard_limit_bytes / 1e9:.2f}; processes the same: {result.same_processes}; first "
        f"token {result.first_token_alone_s:.2f} s before, {result.first_token_after_s:.2f} s after"
    )
    save("overload", asdict(result))


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


if __name__ == "__main__":
    main()
