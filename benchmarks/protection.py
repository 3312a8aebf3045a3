"""What it costs that streams survive their worker: the copy of each token that goes to the
controller, in tokens/s.

    python -m benchmarks.protection [--streams 8,32] [--repeats 7] [--max-tokens 64]

One cluster, two workers with the demo model: one as it is, one that tells the controller of first
tokens only. Each gets the same prompts in turn while the other has none, greedy. Prints a table and
writes results/protection.json.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.loads import story_prompts
from benchmarks.local_cluster import LocalCluster, generate
from benchmarks.measures import print_table, save, spread
from benchmarks.stage import SCRIPTS, child, nats_server
from shared.client import Cluster, connect
from shared.errors import Unavailable
from shared.settings.base import DEMO_MODEL

_SIDES = ("with", "without")
_COMMANDS = {
    "with": [str(SCRIPTS / "worker")],
    "without": [sys.executable, "-m", "benchmarks.unprotected_worker"],
}
_SETTINGS = {
    "CLUSTER__SKILLS": json.dumps({"chat": [DEMO_MODEL]}),
    "CLUSTER__WORKER__MODELS": json.dumps([DEMO_MODEL]),
    "CLUSTER__WORKER__ADAPTIVE_BATCHING__ENABLED": "false",
    "CLUSTER__WORKER__KV_CACHE__ENABLED": "false",
    "CLUSTER__LOGGING__LEVEL": "warning",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default="8,32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.streams.split(",")]
    with _cluster() as local:
        runs = asyncio.run(_compare(local, counts, arguments.repeats, arguments.max_tokens))
    _report(runs, arguments.repeats)


@contextlib.contextmanager
def _cluster() -> Iterator[LocalCluster]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-protection-")))
        url, _, nats_pid = stack.enter_context(nats_server(folder))
        commands = {"controller": [str(SCRIPTS / "controller"), "--id", "controller"]}
        commands |= {side: [*_COMMANDS[side], "--id", side] for side in _SIDES}
        pids = {"nats": nats_pid}
        for name, command in commands.items():
            settings = {**_SETTINGS, "CLUSTER__WORKER__LABELS": json.dumps({"copy": name})}
            process = child([*command, "--nats", url], folder / f"{name}.log", settings)
            pids[name] = stack.enter_context(process).pid
        yield LocalCluster(url, pids)


async def _compare(
    local: LocalCluster, counts: list[int], repeats: int, max_tokens: int
) -> dict[int, list[dict[str, Any]]]:
    """For each number of streams the runs of both, in turn."""
    prompts = story_prompts(max(counts))
    runs: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    async with connect(local.url) as cluster:
        await _until_warm(cluster)
        engines = {
            f"engine {side}": process.pid
            for side in _SIDES
            for process in psutil.Process(local.processes[side]).children()
        }
        local = LocalCluster(local.url, {**local.processes, **engines})
        for side in _SIDES:
            await _ask(cluster, local, prompts[:2], 4, side)  # warm
        for repeat in range(repeats):
            for count in counts:
                print(f"run {repeat + 1}/{repeats}, {count} streams", file=sys.stderr)
                order = _SIDES if repeat % 2 else _SIDES[::-1]
                asked = prompts[:count]
                run = {side: await _ask(cluster, local, asked, max_tokens, side) for side in order}
                with_copy, without = run["with"]["tokens_per_s"], run["without"]["tokens_per_s"]
                runs[count].append({**run, "ratio": round(with_copy / without, 4)})
    return runs


async def _until_warm(cluster: Cluster) -> None:
    while True:
        with contextlib.suppress(Unavailable):
            models = [one for worker in (await cluster.health()).workers for one in worker.models]
            if [one.state for one in models] == ["warm"] * len(_SIDES):
                return
        await asyncio.sleep(0.2)


async def _ask(
    cluster: Cluster, local: LocalCluster, prompts: list[list[int]], max_tokens: int, side: str
) -> dict[str, Any]:
    how = {"temperature": 0, "requires": {"labels": {"copy": side}}}
    run, _ = await generate(cluster, local, prompts, max_tokens, [how] * len(prompts))
    return run.summary()


def _report(runs: dict[int, list[dict[str, Any]]], repeats: int) -> None:
    rows, medians = [], {}
    for count, each in runs.items():
        ratio = spread(run["ratio"] for run in each)
        medians[count] = {"ratio": ratio}
        for side in _SIDES:
            speed = spread(run[side]["tokens_per_s"] for run in each)
            shares = [
                spread(run[side]["cpu_share"][name] for run in each)["median"]
                for name in (f"engine {side}", side, "controller", "nats", "client")
            ]
            medians[count][side] = speed
            rows.append(
                (
                    f"{count} streams, {side} the copy",
                    f"{speed['median']:.1f} ({speed['min']:.1f}-{speed['max']:.1f})",
                    f"{ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})"
                    if side == "with"
                    else "1",
                    *(f"{share:.2f}" for share in shares),
                )
            )
    print_table(
        f"the controller's copy of the tokens, medians of {repeats} (minimum-maximum)",
        ("", "tokens/s", "ratio", "engine", "worker", "controller", "nats", "client"),
        rows,
    )
    path = save("protection", {"repeats": repeats, "medians": medians, "runs": runs})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
