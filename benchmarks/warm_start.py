"""The first token of a pre-warmed model beside that of a cold one.

    python -m benchmarks.warm_start [--repeats 7]

One worker, one short prompt (at most 20 tokens). Warm: the model is loaded and has generated,
as pre-warming leaves it. Cold: it was unloaded, so that the request loads it. In turn, in one
run. Writes results/warm_start.json.
"""

import argparse
import asyncio
import time

from benchmarks.loads import tokenizer
from benchmarks.local_cluster import local_cluster
from benchmarks.measures import print_table, save, spread
from shared.client import Cluster, connect
from shared.messages.control import UnloadModel
from shared.settings.base import DEMO_MODEL

_PROMPT = "The capital of France is the city of"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with local_cluster() as local:
        warm, cold = asyncio.run(_measure(local.url, arguments.repeats))
    tokens = len(tokenizer().encode(_PROMPT))
    less = [1 - one / other for one, other in zip(warm, cold, strict=True)]
    rows = [("warm", warm), ("cold", cold)]
    print_table(
        f"first token of a prompt of {tokens} tokens, ms",
        ("", "median", "min", "max"),
        [(name, *(f"{1000 * v:.0f}" for v in spread(values).values())) for name, values in rows],
    )
    print(f"less by {spread(less)['median']:.1%} ({min(less):.1%} to {max(less):.1%})")
    save("warm_start", {"warm_s": warm, "cold_s": cold, "less": spread(less)})


async def _measure(url: str, repeats: int) -> tuple[list[float], list[float]]:
    warm, cold = [], []
    async with connect(url) as cluster:
        (worker,) = (await cluster.health()).workers
        await _first_token_s(cluster)
        for _ in range(repeats):
            warm.append(await _first_token_s(cluster))
            reply = await cluster.control(worker.id, UnloadModel(model=DEMO_MODEL))
            assert reply.ok, reply
            cold.append(await _first_token_s(cluster))
    return warm, cold


async def _first_token_s(cluster: Cluster) -> float:
    started = time.perf_counter()
    took_s = 0.0
    async for chunk in cluster.stream(prompt=_PROMPT, max_tokens=4, temperature=0):
        if chunk.token_ids and not took_s:
            took_s = time.perf_counter() - started
    return took_s


if __name__ == "__main__":
    main()
