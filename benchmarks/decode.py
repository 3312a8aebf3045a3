"""Decoding at full batches: the engine alone and the whole cluster, beside the limit (a bare
forward pass of the same batch) and mlx-lm's BatchGenerator.

    python -m benchmarks.decode [--rows 8,16,32] [--repeats 3] [--max-tokens 64]

All take turns, in one run, on the same model and threads. Counted is the time while all rows
run, so that prefill counts for none. Greedy, and each row with temperature, top-p and seed of
its own (BatchGenerator: a sampler a row). Prints tables and writes results/decode.json.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.engine_alone import EngineAlone, sampling
from benchmarks.loads import story_prompts
from benchmarks.local_cluster import LocalCluster, local_cluster
from benchmarks.measures import Run, StreamClock, cpu_seconds, print_table, save, spread
from benchmarks.plain_mlx_lm import PlainProcess
from shared.client import Cluster, connect
from worker import demo_model

_SIDES = ("forward", "plain", "engine", "cluster", "plain sampled", "engine sampled",
          "cluster sampled")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="8,16,32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--no-cluster", action="store_true", help="only engine and peers")
    arguments = parser.parse_args()
    folder = str(demo_model.folder())
    counts = [int(count) for count in arguments.rows.split(",")]
    runs: dict[int, dict[str, list[float]]] = {
        count: {side: [] for side in _SIDES} for count in counts
    }
    shares: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with PlainProcess(folder) as plain, EngineAlone(folder) as engine, _cluster(arguments) as local:
        for repeat in range(arguments.repeats + 1):
            for count in counts if repeat else counts[:1]:  # the first warms all up
                figures = runs[count] if repeat else {side: [] for side in _SIDES}
                print(f"run {repeat}/{arguments.repeats}, {count} rows", file=sys.stderr)
                tokens = arguments.max_tokens if repeat else 4
                _run_plain(figures, plain, engine, count, tokens)
                if local is not None:
                    share = asyncio.run(_run_cluster(figures, local, count, tokens))
                    shares[count] += [share] if repeat else []
    _report(runs, shares, arguments.repeats)


def _cluster(arguments: argparse.Namespace) -> AbstractContextManager[LocalCluster | None]:
    return contextlib.nullcontext() if arguments.no_cluster else local_cluster()


def _samplers(count: int) -> list[dict[str, float]]:
    return [
        {"temp": 0.6 + 0.02 * (row % 16), "top_p": 0.98 - 0.01 * (row % 12)} for row in range(count)
    ]


def _run_plain(
    figures: dict[str, list[float]],
    plain: PlainProcess,
    engine: EngineAlone,
    count: int,
    max_tokens: int,
) -> None:
    prompts = story_prompts(count)
    samplers = _samplers(count)
    context = len(prompts[0]) + max_tokens // 2
    figures["forward"].append(count / plain.forward(count, context, max(4, max_tokens // 3)))
    figures["plain"].append(plain.generate(prompts, max_tokens)[0].full_tokens_per_s)
    figures["engine"].append(engine.generate(prompts, max_tokens)[0].full_tokens_per_s)
    run, _ = plain.generate(prompts, max_tokens, samplers=samplers)
    figures["plain sampled"].append(run.full_tokens_per_s)
    hows = [sampling(how["temp"], how["top_p"], row) for row, how in enumerate(samplers)]
    run, _ = engine.generate(prompts, max_tokens, hows)
    figures["engine sampled"].append(run.full_tokens_per_s)


async def _run_cluster(
    figures: dict[str, list[float]], local: LocalCluster, count: int, max_tokens: int
) -> dict[str, float]:
    """The shares of a core that each process used, greedy."""
    prompts, samplers = story_prompts(count), _samplers(count)
    processes = {**local.processes, "client": os.getpid()}
    async with connect(local.url) as cluster:
        before, started = cpu_seconds(processes), time.perf_counter()
        run = Run()
        await asyncio.gather(
            *(_stream(cluster, run, prompt, max_tokens, temperature=0) for prompt in prompts)
        )
        seconds = time.perf_counter() - started
        after = cpu_seconds(processes)
        figures["cluster"].append(run.full_tokens_per_s)
        run = Run()
        await asyncio.gather(
            *(
                _stream(
                    cluster, run, prompt, max_tokens,
                    temperature=how["temp"], top_p=how["top_p"], seed=row,
                )
                for row, (prompt, how) in enumerate(zip(prompts, samplers, strict=True))
            )
        )  # fmt: skip
        figures["cluster sampled"].append(run.full_tokens_per_s)
    return {name: (after[name] - before[name]) / seconds for name in processes}


async def _stream(
    cluster: Cluster, run: Run, prompt: list[int], max_tokens: int, **how: Any
) -> None:
    clock = StreamClock(run)
    async for chunk in cluster.stream(prompt=prompt, max_tokens=max_tokens, **how):
        clock.tick(len(chunk.token_ids))


def _report(
    runs: dict[int, dict[str, list[float]]],
    shares: dict[int, list[dict[str, float]]],
    repeats: int,
) -> None:
    rows: list[tuple[str, ...]] = []
    medians: dict[int, dict[str, Any]] = {}
    for count, figures in runs.items():
        medians[count] = {}
        for side, values in figures.items():
            if not values:
                continue
            speed = spread(values)
            limit = _ratio(values, figures["forward"])
            peer = _ratio(values, figures["plain sampled" if "sampled" in side else "plain"])
            medians[count][side] = {"tokens_per_s": speed, "of_forward": limit, "of_plain": peer}
            rows.append(
                (
                    f"{count} rows, {side}",
                    f"{count / speed['median'] * 1000:.1f}",
                    *map(_shown, (speed, limit, peer)),
                )
            )
    print_table(
        f"float32, medians of {repeats} (minimum-maximum)",
        ("", "step ms", "tokens/s", "of the forward pass", "of BatchGenerator"),
        rows,
    )
    names = [name for some in shares.values() if some for name in some[0]]
    names = list(dict.fromkeys(names))
    if names:
        print_table(
            "share of a core that each process used, greedy, median",
            ("", *names),
            (
                (f"{count} rows", *(f"{_median(run[name] for run in some):.2f}" for name in names))
                for count, some in shares.items()
            ),
        )
    path = save("decode", {"repeats": repeats, "medians": medians, "runs": runs, "shares": shares})
    print(f"written to {path}")


def _shown(figures: dict[str, float]) -> str:
    return f"{figures['median']:.2f} ({figures['min']:.2f}-{figures['max']:.2f})"


def _median(values: Iterable[float]) -> float:
    return spread(values)["median"]


def _ratio(values: list[float], others: list[float]) -> dict[str, float]:
    return spread(value / other for value, other in zip(values, others, strict=True))


if __name__ == "__main__":
    main()
