"""Throughput with the KV memory on and nothing in it that helps, beside the same without it.

    python -m benchmarks.kv_overhead [--clients 8] [--starts 6] [--repeats 4]

Prompts of 50 to 380 random tokens that nobody has begun with, greedy. Two clusters take turns, and
turns at being first; the one that waits does nothing. They are started anew several times, as one
process may be faster than its twin for all its life, and many short pairs are run, as a shared
machine changes its speed by more than what is looked for. Prompts may hold up decoding for 5 s on
both sides, so that both make the same passes. Each mean has its standard error beside it, taken
over the starts. CPU seconds are those of worker and engine, all their threads. Writes
results/kv_overhead.json.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass

from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import LocalCluster, generate, kept_on_disk, local_cluster
from benchmarks.measures import cpu_seconds, print_table, save, shown, spread
from shared.client import Cluster, connect

_BOTH = {"CLUSTER__WORKER__CONTINUOUS_BATCHING__MAX_DECODE_STALL_MS": "5000"}
_OFF = {**_BOTH, "CLUSTER__WORKER__KV_CACHE__ENABLED": "false"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=4)
    arguments = parser.parse_args()
    starts = []
    for number in range(arguments.starts):
        print(f"start {number + 1}/{arguments.starts}", file=sys.stderr)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-kv-"))
            settings = {
                "on": {**_BOTH, **kept_on_disk(folder)},
                "off": _OFF,
            }
            sides = {
                side: stack.enter_context(local_cluster(settings=settings[side]))
                for side in list(settings)[:: 1 if number % 2 else -1]
            }
            starts.append(asyncio.run(_compare(sides, arguments, seed=1000 * number)))
    pairs = [pair for start in starts for pair in start]
    ratios = {
        "speed": _ratios(
            [[pair["on"].tokens_per_s / pair["off"].tokens_per_s for pair in s] for s in starts]
        ),
        "cpu": _ratios([[pair["on"].cpu_ms / pair["off"].cpu_ms for pair in s] for s in starts]),
    }
    speeds = {side: spread(pair[side].tokens_per_s for pair in pairs) for side in sides}
    cpu = {side: spread(pair[side].cpu_ms for pair in pairs) for side in sides}
    print_table(
        f"{arguments.clients} clients, no hits, medians of {len(pairs)} in {len(starts)} starts "
        "(minimum-maximum)",
        ("KV memory", "tokens/s", "CPU ms a token"),
        [(side, _shown(speeds[side]), _shown(cpu[side])) for side in sides],
    )
    for name, ratio in ratios.items():
        print(
            f"{name}, on / off: mean {ratio['mean']:.3f}, standard error {_error(ratio)}, "
            f"median {ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})"
        )
    shown = [{side: asdict(one) for side, one in pair.items()} for pair in pairs]
    print(f"written to {save('kv_overhead', {**ratios, 'pairs': shown})}")


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one side did. `cpu_ms`: of worker and engine for a token."""

    tokens_per_s: float
    cpu_ms: float


def _ratios(starts: list[list[float]]) -> dict[str, float | None]:
    """Of the pairs of each start; the standard error is that of the mean of the starts' means, None
    for a single one."""
    means = [statistics.fmean(start) for start in starts]
    error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else None
    every = spread(ratio for start in starts for ratio in start)
    return {**every, "mean": statistics.fmean(means), "error": error}


def _error(ratio: dict[str, float | None]) -> str:
    error = ratio["error"]
    return "unknown" if error is None else f"{error:.3f}"


def _shown(figure: dict[str, float]) -> str:
    return shown(figure, digits=1)


async def _compare(
    sides: dict[str, LocalCluster], arguments: argparse.Namespace, seed: int
) -> list[dict[str, _Pass]]:
    pairs = []
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            side: await stack.enter_async_context(connect(local.url))
            for side, local in sides.items()
        }
        for repeat in range(-1, arguments.repeats):  # the first one is not counted
            print(f"run {repeat + 1}/{arguments.repeats}", file=sys.stderr)
            prompts = mixed_prompts(arguments.requests, 50, 380, seed=seed + repeat + 1)
            pair: dict[str, _Pass] = {}
            for side in list(sides)[:: 1 if repeat % 2 else -1]:
                pair[side] = await _run(clients[side], sides[side], prompts, arguments)
            if repeat >= 0:
                pairs.append(pair)
    return pairs


async def _run(
    cluster: Cluster, local: LocalCluster, prompts: list[list[int]], arguments: argparse.Namespace
) -> _Pass:
    """Of clients in a closed loop."""
    share = -(-len(prompts) // arguments.clients)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    served_by = {
        name: pid for name, pid in local.processes.items() if name.startswith(("worker", "engine"))
    }
    before = cpu_seconds(served_by)

    async def client(mine: list[list[int]]) -> int:
        count = 0
        for prompt in mine:
            _, answers = await generate(cluster, local, [prompt], arguments.max_tokens)
            count += len(answers[0])
        return count

    parts = [prompts[start : start + share] for start in range(0, len(prompts), share)]
    tokens = sum(await asyncio.gather(*(client(part) for part in parts)))
    seconds = loop.time() - began_at
    cpu_s = sum(cpu_seconds(served_by).values()) - sum(before.values())
    return _Pass(tokens / seconds, 1000 * cpu_s / tokens)


if __name__ == "__main__":
    main()
