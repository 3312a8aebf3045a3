"""Two models in one engine under equal load: the share of tokens that each gets.

    python -m benchmarks.two_models [--clients 8] [--seconds 60] [--repeats 3]

Both are the demo model under names of their own, so that equal shares are equal numbers of
tokens. Each has its clients, in a closed loop with prompts of 20 to 200 tokens and answers of 40.
Beside it: one model alone with all of the clients. Writes results/two_models.json.
"""

import argparse
import asyncio
import json
import time
from collections import Counter

from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import local_cluster
from benchmarks.measures import print_table, save, spread
from shared.client import Cluster, connect

_SHORTEST, _MAX_TOKENS = 20, 40
_NAMES = ("left", "right")
_SETTINGS = {
    "CLUSTER__SKILLS": json.dumps({"chat": _NAMES}),
    "CLUSTER__MODELS": json.dumps({name: {"path": "demo"} for name in _NAMES}),
    "CLUSTER__WORKER__PRE_WARMING__MODELS": json.dumps([{"model": name} for name in _NAMES]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8, help="of each model")
    parser.add_argument("--longest", type=int, default=200, help="tokens of a prompt")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    both: list[Counter[str]] = []
    alone: list[Counter[str]] = []
    with local_cluster(settings=_SETTINGS) as local:
        for repeat in range(arguments.repeats):
            for runs, models in ((both, _NAMES), (alone, _NAMES[:1] * 2)):
                clients = [model for model in models for _ in range(arguments.clients)]
                prompts = mixed_prompts(512, _SHORTEST, arguments.longest, repeat)
                runs.append(asyncio.run(_run(local.url, clients, arguments.seconds, prompts)))
    shares = [tokens["left"] / tokens.total() for tokens in both]
    in_all = [run.total() / arguments.seconds for run in both]
    one = [run.total() / arguments.seconds for run in alone]
    print_table(
        f"{arguments.clients} clients for each model, {arguments.seconds:g} s",
        ("", "median", "min", "max"),
        [
            ("share of the first model", *(f"{v:.3f}" for v in spread(shares).values())),
            ("tokens/s, both", *(f"{v:.1f}" for v in spread(in_all).values())),
            ("tokens/s, one with all clients", *(f"{v:.1f}" for v in spread(one).values())),
        ],
    )
    save("two_models", {"share": shares, "tokens_per_s": in_all, "alone_tokens_per_s": one})


async def _run(
    url: str, clients: list[str], seconds: float, prompts: list[list[int]]
) -> Counter[str]:
    """Tokens by model."""
    tokens: Counter[str] = Counter()
    until = time.perf_counter() + seconds
    async with connect(url) as cluster, asyncio.TaskGroup() as tasks:
        for number, model in enumerate(clients):
            mine = prompts[number :: len(clients)]
            tasks.create_task(_client(cluster, model, mine, until, tokens))
    return tokens


async def _client(
    cluster: Cluster, model: str, prompts: list[list[int]], until: float, tokens: Counter[str]
) -> None:
    for prompt in prompts:
        stream = cluster.stream(model=model, prompt=prompt, max_tokens=_MAX_TOKENS)
        async for chunk in stream:
            if time.perf_counter() >= until:
                await stream.aclose()
                return
            tokens[model] += len(chunk.token_ids)


if __name__ == "__main__":
    main()
