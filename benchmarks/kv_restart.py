"""The next turn of a long session: cold, kept in memory, and kept on disk over a restart.

    python -m benchmarks.kv_restart [--tokens 3500] [--repeats 3]

In each repeat another session of the demo model has its first turn (cold), its second (kept in
memory) and, in a new cluster on the same folder, its third (kept on disk). Writes
results/kv_restart.json.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from typing import Any

from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import LocalCluster, kept_on_disk, local_cluster
from benchmarks.measures import print_table, save, spread
from shared.client import connect

_NEW_TOKENS = 30
_ANSWER_TOKENS = 8
_TURNS = ("cold", "memory", "disk")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=3500)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="mlx-kv-") as folder:
        for repeat in range(arguments.repeats):
            print(f"run {repeat + 1}/{arguments.repeats}", file=sys.stderr)
            settings = kept_on_disk(folder)
            ids = mixed_prompts(1, arguments.tokens, arguments.tokens, seed=repeat)[0]
            more = mixed_prompts(2, _NEW_TOKENS, _NEW_TOKENS, seed=100 + repeat)
            with local_cluster(settings=settings) as local:
                first = asyncio.run(_turns(local, f"s{repeat}", ids, [[], more[0]]))
            with local_cluster(settings=settings) as local:
                third = asyncio.run(_turns(local, f"s{repeat}", ids, [more[1]]))
            results.append(dict(zip(_TURNS, [*first, *third], strict=True)))
    _report(results, arguments.tokens)


async def _turns(
    local: LocalCluster, session: str, ids: list[int], turns: list[list[int]]
) -> list[dict[str, Any]]:
    """Each turn adds tokens to `ids`, and its answer."""
    told = []
    async with connect(local.url) as cluster:
        async for _ in cluster.stream(prompt=[1, 2, 3], max_tokens=4):
            pass  # whatever a first request may have to do
        for new in turns:
            ids += new
            began_at, first_s = time.perf_counter(), 0.0
            stream = cluster.stream(
                prompt=list(ids), session_id=session, max_tokens=_ANSWER_TOKENS, temperature=0
            )
            async for chunk in stream:
                first_s = first_s or time.perf_counter() - began_at
                ids += chunk.token_ids
            assert stream.usage is not None
            told.append({"ttft_s": first_s, "cached_tokens": stream.usage.cached_tokens})
    return told


def _report(results: list[dict[str, Any]], tokens: int) -> None:
    ttft = {turn: spread(result[turn]["ttft_s"] for result in results) for turn in _TURNS}
    rows = []
    for turn in _TURNS:
        ratio = spread(result["cold"]["ttft_s"] / result[turn]["ttft_s"] for result in results)
        cached = spread(result[turn]["cached_tokens"] for result in results)
        rows.append(
            (
                turn,
                f"{ttft[turn]['median']:.3f} ({ttft[turn]['min']:.3f}-{ttft[turn]['max']:.3f})",
                f"{ratio['median']:.1f} ({ratio['min']:.1f}-{ratio['max']:.1f})",
                f"{cached['median']:.0f}",
            )
        )
    title = f"a session of {tokens} tokens, medians of {len(results)} (minimum-maximum)"
    print_table(title, ("", "first token s", "cold / this", "cached tokens"), rows)
    print(f"written to {save('kv_restart', {'tokens': tokens, 'runs': results})}")


if __name__ == "__main__":
    main()
