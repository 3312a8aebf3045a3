"""Throughput with the KV memory on and nothing in it that helps, beside the same without it.

    python -m benchmarks.kv_overhead [--clients 8] [--repeats 24]

Prompts of 50 to 380 random tokens that nobody has begun with, greedy. Two clusters take turns, and
turns at being first; the one that waits does nothing. Many short pairs, as a shared machine changes
its speed by more than what is looked for: the mean has its standard error beside it. Writes
results/kv_overhead.json.
"""

import argparse
import asyncio
import contextlib
import math
import statistics
import sys
import tempfile
from typing import Any

from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import LocalCluster, generate, local_cluster
from benchmarks.measures import print_table, save, spread
from shared.client import Cluster, connect

_OFF = {"CLUSTER__WORKER__KV_CACHE__ENABLED": "false"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=24)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-kv-"))
        on = {"CLUSTER__WORKER__KV_CACHE__DISK_PATH": folder}
        sides = {
            "on": stack.enter_context(local_cluster(settings=on)),
            "off": stack.enter_context(local_cluster(settings=_OFF)),
        }
        pairs = asyncio.run(_compare(sides, arguments))
    ratios = [pair["on"] / pair["off"] for pair in pairs]
    ratio, mean = spread(ratios), statistics.fmean(ratios)
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else math.inf
    speeds = {side: spread(pair[side] for pair in pairs) for side in sides}
    print_table(
        f"{arguments.clients} clients, no hits, medians of {len(pairs)} (minimum-maximum)",
        ("KV memory", "tokens/s"),
        [
            (side, f"{speed['median']:.1f} ({speed['min']:.1f}-{speed['max']:.1f})")
            for side, speed in speeds.items()
        ],
    )
    print(f"on / off: {ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})")
    print(f"mean: {mean:.3f}, standard error {error:.3f}")
    figures = {"ratio": ratio, "mean": mean, "standard_error": error, "pairs": pairs}
    print(f"written to {save('kv_overhead', figures)}")


async def _compare(
    sides: dict[str, LocalCluster], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    pairs = []
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            side: await stack.enter_async_context(connect(local.url))
            for side, local in sides.items()
        }
        for repeat in range(-1, arguments.repeats):  # the first one is not counted
            print(f"run {repeat + 1}/{arguments.repeats}", file=sys.stderr)
            prompts = mixed_prompts(arguments.requests, 50, 380, seed=1000 + repeat)
            pair: dict[str, Any] = {}
            for side in list(sides)[:: 1 if repeat % 2 else -1]:
                pair[side] = await _tokens_per_s(clients[side], sides[side], prompts, arguments)
            if repeat >= 0:
                pairs.append(pair)
    return pairs


async def _tokens_per_s(
    cluster: Cluster, local: LocalCluster, prompts: list[list[int]], arguments: argparse.Namespace
) -> float:
    """Of clients in a closed loop."""
    share = -(-len(prompts) // arguments.clients)
    loop = asyncio.get_running_loop()
    began_at, tokens = loop.time(), 0

    async def client(mine: list[list[int]]) -> int:
        count = 0
        for prompt in mine:
            _, answers = await generate(cluster, local, [prompt], arguments.max_tokens)
            count += len(answers[0])
        return count

    parts = [prompts[start : start + share] for start in range(0, len(prompts), share)]
    tokens = sum(await asyncio.gather(*(client(part) for part in parts)))
    return tokens / (loop.time() - began_at)


if __name__ == "__main__":
    main()
