"""Tokens/s through the whole cluster beside plain BatchGenerator on the same prompts.

    python -m benchmarks.throughput [--streams 1,8,32] [--repeats 3] [--max-tokens 48]

Both run in turn, in one run, greedy, on the same model and number of threads; the tokens are
compared too. Prefill counts. Prints a table and writes results/throughput.json.
"""

import argparse
import asyncio
import sys
from typing import Any

from benchmarks.loads import story_prompts
from benchmarks.local_cluster import LocalCluster, generate, local_cluster
from benchmarks.measures import print_table, save, spread
from benchmarks.plain_mlx_lm import PlainProcess
from shared.client import connect
from worker.models import demo_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=48)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.streams.split(",")]
    folder = str(demo_model.folder())
    with PlainProcess(folder) as peer, local_cluster() as cluster:
        results = asyncio.run(
            _compare(cluster, peer, counts, arguments.repeats, arguments.max_tokens)
        )
    _report(results, arguments.repeats)


async def _compare(
    local: LocalCluster, peer: PlainProcess, counts: list[int], repeats: int, max_tokens: int
) -> dict[int, list[dict[str, Any]]]:
    """For each number of streams the runs of both, in turn."""
    prompts = story_prompts(max(counts))
    results: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    async with connect(local.url) as cluster:
        await generate(cluster, local, prompts[:2], 4)  # warm both
        peer.generate(prompts[:2], 4)
        for repeat in range(repeats):
            for count in counts:
                print(f"run {repeat + 1}/{repeats}, {count} streams", file=sys.stderr)
                plain, plain_tokens = peer.generate(prompts[:count], max_tokens)
                ours, our_tokens = await generate(cluster, local, prompts[:count], max_tokens)
                results[count].append(
                    {
                        "plain": plain.summary(),
                        "cluster": ours.summary(),
                        "ratio": round(ours.tokens_per_s / plain.tokens_per_s, 3),
                        "same_answers": sum(
                            a == b for a, b in zip(plain_tokens, our_tokens, strict=True)
                        ),
                    }
                )
    return results


def _report(results: dict[int, list[dict[str, Any]]], repeats: int) -> None:
    rows = []
    medians = {}
    for count, runs in results.items():
        ratio = spread(run["ratio"] for run in runs)
        median = {
            side: {
                "tokens_per_s": spread(run[side]["tokens_per_s"] for run in runs),
                **{
                    f"{what}_{p}": spread(run[side][what][p] for run in runs)["median"]
                    for what in ("ttft_ms", "gap_ms")
                    for p in ("p50", "p95")
                },
            }
            for side in ("plain", "cluster")
        }
        medians[count] = {"ratio": ratio, **median}
        for side in ("plain", "cluster"):
            figures: dict[str, Any] = median[side]
            speed = figures["tokens_per_s"]
            rows.append(
                (
                    f"{count} streams, {side}",
                    f"{speed['median']:.1f} ({speed['min']:.1f}-{speed['max']:.1f})",
                    f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"
                    if side == "cluster"
                    else "1",
                    *(
                        f"{figures[f'{what}_{p}']:.0f}"
                        for what in ("ttft_ms", "gap_ms")
                        for p in ("p50", "p95")
                    ),
                )
            )
    print_table(
        f"greedy, float32, medians of {repeats} (minimum-maximum)",
        ("", "tokens/s", "ratio", "TTFT p50 ms", "p95", "gap p50 ms", "p95"),
        rows,
    )
    _print_shares(results)
    path = save("throughput", {"repeats": repeats, "medians": medians, "runs": results})
    print(f"written to {path}")


def _print_shares(results: dict[int, list[dict[str, Any]]]) -> None:
    names = list(next(iter(results.values()))[0]["cluster"]["cpu_share"])
    print_table(
        "CPU share of each process (1 = one core), median; answers identical to plain",
        ("", *names, "identical"),
        (
            (
                f"{count} streams",
                *(
                    f"{spread(run['cluster']['cpu_share'][name] for run in runs)['median']:.2f}"
                    for name in names
                ),
                f"{min(run['same_answers'] for run in runs)}/{count}",
            )
            for count, runs in results.items()
        ),
    )


if __name__ == "__main__":
    main()
