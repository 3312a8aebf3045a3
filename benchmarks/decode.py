"""Decoding at full batches: the engine alone and the whole cluster, beside the limit (a bare
forward pass of the same batch) and mlx-lm's BatchGenerator.

    python -m benchmarks.decode [--rows 8,16,32] [--repeats 3] [--max-tokens 96]

All sides run in turns of two seconds, on the same model and threads: the host may be shared.
The speed is that of the median step while all rows run, so that prefill counts for none.
Greedy, and each row with temperature, top-p and seed of its own (BatchGenerator: a sampler a
row). Prints tables and writes results/decode.json.
"""

import argparse
import asyncio
import contextlib
import functools
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.engine_alone import EngineAlone, sampling
from benchmarks.interleaved import interleave
from benchmarks.loads import story_prompts
from benchmarks.local_cluster import LocalCluster, generate, local_cluster
from benchmarks.measures import Run, print_table, ratios, save, shown, spread
from benchmarks.plain_mlx_lm import PlainProcess
from shared.client import connect
from worker.models import demo_model

_SIDES = ("forward", "BatchGenerator", "engine", "cluster")
_WAYS = ("greedy", "sampled")
_WARM_TOKENS = 24
_SETTINGS = {
    "CLUSTER__WORKER__ENGINES__HANG_TIMEOUT_MS": "600000",
    "CLUSTER__WORKER__DRAIN_TIMEOUT_MS": "1000",
}
"""A side that is stopped is not taken for dead. When the benchmark is ended, its clients, which
are in threads, go on until the cluster has ended."""

Figures = dict[str, list[float]]
"""Tokens/s of each side, a value a run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="8,16,32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.rows.split(",")]
    runs: dict[str, dict[int, Figures]] = {
        way: {count: {side: [] for side in _SIDES} for count in counts} for way in _WAYS
    }
    shares: dict[int, dict[str, float]] = {}
    with _sides() as sides:
        sides.run(counts[0], min(_WARM_TOKENS, arguments.max_tokens), "greedy")
        for repeat in range(arguments.repeats):
            for way in _WAYS:
                for count in counts:
                    print(
                        f"run {repeat + 1}/{arguments.repeats}, {count} rows, {way}",
                        file=sys.stderr,
                    )
                    speeds = sides.run(count, arguments.max_tokens, way)
                    for side, speed in speeds.items():
                        runs[way][count][side].append(speed)
        for count in counts:
            shares[count] = sides.cpu_shares(count, arguments.max_tokens)
    _report(runs, shares, arguments.repeats)


@contextlib.contextmanager
def _sides() -> Iterator["_Sides"]:
    folder = str(demo_model.folder())
    with (
        PlainProcess(folder) as forward,
        PlainProcess(folder) as plain,
        EngineAlone(folder) as engine,
        local_cluster(settings=_SETTINGS) as local,
    ):
        yield _Sides(forward, plain, engine, local)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The processes of all sides."""

    forward: PlainProcess
    plain: PlainProcess
    engine: EngineAlone
    local: LocalCluster

    def run(self, count: int, max_tokens: int, way: str) -> dict[str, float]:
        """Tokens/s of each side."""
        prompts = story_prompts(count)
        samplers = _samplers(count) if way == "sampled" else []
        hows = [sampling(how["temp"], how["top_p"], row) for row, how in enumerate(samplers)]
        fields = [
            {"temperature": how.temperature, "top_p": how.top_p, "seed": how.seed} for how in hows
        ]

        def plain() -> list[float]:
            return self.plain.generate(prompts, max_tokens, samplers=samplers)[0].full_steps_s

        def engine() -> list[float]:
            return self.engine.generate(prompts, max_tokens, hows)[0].full_steps_s

        jobs: dict[str, Callable[[], list[float]]] = {
            "forward": functools.partial(self.forward.forward, prompts, max_tokens),
            "BatchGenerator": plain,
            "engine": engine,
            "cluster": lambda: _through(self.local, prompts, max_tokens, fields).full_steps_s,
        }
        pids = {
            "forward": [self.forward.pid],
            "BatchGenerator": [self.plain.pid],
            "engine": [self.engine.pid],
            "cluster": [self.local.processes["engine-1"]],
        }
        steps = interleave(jobs, pids)
        return {side: count / statistics.median(some) for side, some in steps.items()}

    def cpu_shares(self, count: int, max_tokens: int) -> dict[str, float]:
        """The share of a core that each process of the cluster uses, greedy; other sides idle."""
        run = _through(self.local, story_prompts(count), max_tokens, [])
        return {name: used / run.seconds for name, used in run.cpu_s.items()}


def _samplers(count: int) -> list[dict[str, float]]:
    return [
        {"temp": 0.6 + 0.02 * (row % 16), "top_p": 0.98 - 0.01 * (row % 12)} for row in range(count)
    ]


def _through(
    local: LocalCluster, prompts: list[list[int]], max_tokens: int, fields: list[dict[str, Any]]
) -> Run:
    async def run_all() -> Run:
        async with connect(local.url) as cluster:
            return (await generate(cluster, local, prompts, max_tokens, fields))[0]

    return asyncio.run(run_all())


def _report(
    runs: dict[str, dict[int, Figures]], shares: dict[int, dict[str, float]], repeats: int
) -> None:
    medians: dict[str, dict[int, dict[str, Any]]] = {way: {} for way in _WAYS}
    for way, by_count in runs.items():
        rows: list[tuple[str, ...]] = []
        for count, figures in by_count.items():
            medians[way][count] = {}
            for side, values in figures.items():
                speed = spread(values)
                limit = ratios(values, figures["forward"])
                peer = ratios(values, figures["BatchGenerator"])
                medians[way][count][side] = {
                    "tokens_per_s": speed, "of_forward": limit, "of_plain": peer,
                }  # fmt: skip
                step_ms = count / speed["median"] * 1000
                cells = map(shown, (speed, limit, peer))
                rows.append((f"{count} rows, {side}", f"{step_ms:.1f}", *cells))
        print_table(
            f"{way}, float32, medians of {repeats} (minimum-maximum)",
            ("", "step ms", "tokens/s", "of the forward pass", "of BatchGenerator"),
            rows,
        )
    names = list(dict.fromkeys(name for some in shares.values() for name in some))
    print_table(
        "share of a core that each process used, greedy, all sides but the cluster idle",
        ("", *names),
        (
            (f"{count} rows", *(f"{some[name]:.2f}" for name in names))
            for count, some in shares.items()
        ),
    )
    path = save("decode", {"repeats": repeats, "medians": medians, "runs": runs, "shares": shares})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
