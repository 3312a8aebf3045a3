"""Requests that share a long system prompt: the whole time with the KV memory, without it, and of
plain BatchGenerator.

    python -m benchmarks.kv_shared [--requests 32] [--shared 1000] [--repeats 3]

All requests come at once, greedy; each repeat has another system prompt. Writes
results/kv_shared.json.
"""

import argparse
import asyncio
import contextlib
import sys
from typing import Any

from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import LocalCluster, generate, local_cluster
from benchmarks.measures import print_table, save, spread
from benchmarks.plain_mlx_lm import PlainProcess
from shared.client import Cluster, connect
from worker.models import demo_model

_OFF = {"CLUSTER__WORKER__KV_CACHE__ENABLED": "false"}
_ON = {"CLUSTER__WORKER__KV_CACHE__DISK_MB": "0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--shared", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with (
        PlainProcess(str(demo_model.folder())) as peer,
        local_cluster(settings=_ON) as on,
        local_cluster(settings=_OFF) as off,
    ):
        runs = asyncio.run(_compare(peer, {"on": on, "off": off}, arguments))
    rows = []
    for side in ("on", "off", "plain"):
        seconds = spread(run[side] for run in runs)
        ratio = spread(run[side] / run["on"] for run in runs)
        rows.append(
            (
                side,
                f"{seconds['median']:.1f} ({seconds['min']:.1f}-{seconds['max']:.1f})",
                f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})",
            )
        )
    computed = spread(run["computed"] for run in runs)
    print_table(
        f"{arguments.requests} requests after {arguments.shared} shared tokens, medians of "
        f"{len(runs)} (minimum-maximum)",
        ("KV memory", "seconds", "times those with it"),
        rows,
    )
    print(f"prompt tokens computed: {computed['median']:.0f} of {runs[0]['prompt_tokens']}")
    print(f"same tokens in all three: {all(run['same'] for run in runs)}")
    print(f"written to {save('kv_shared', {'runs': runs})}")


async def _compare(
    peer: PlainProcess, sides: dict[str, LocalCluster], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    runs = []
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            side: await stack.enter_async_context(connect(local.url))
            for side, local in sides.items()
        }
        for repeat in range(arguments.repeats):
            print(f"run {repeat + 1}/{arguments.repeats}", file=sys.stderr)
            (system,) = mixed_prompts(1, arguments.shared, arguments.shared, seed=2000 + repeat)
            own = mixed_prompts(arguments.requests, 20, 30, seed=3000 + repeat)
            prompts = [system + each for each in own]
            run: dict[str, Any] = {"prompt_tokens": sum(map(len, prompts))}
            answers = []
            for side, local in sides.items():
                before = await _saved(clients[side])
                result, tokens = await generate(clients[side], local, prompts, arguments.max_tokens)
                run[side] = result.seconds
                if side == "on":
                    await asyncio.sleep(2)  # the figures are told once a second
                    run["computed"] = run["prompt_tokens"] - (await _saved(clients[side]) - before)
                answers.append(tokens)
            result, tokens = peer.generate(prompts, arguments.max_tokens)
            run["plain"] = result.seconds
            run["same"] = answers[0] == answers[1] == tokens
            runs.append(run)
    return runs


async def _saved(cluster: Cluster) -> int:
    (worker,) = (await cluster.health()).workers
    return worker.engines[0].kv_memory.saved_tokens


if __name__ == "__main__":
    main()
