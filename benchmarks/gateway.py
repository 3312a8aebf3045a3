"""Tokens/s of real streams through the gateway beside the same through the NATS client.

    python -m benchmarks.gateway [--streams 32] [--max-tokens 48] [--repeats 7]

The same cluster, prompts and greedy answers. The two ways take turns, and turns at being first;
each pair gives one ratio. Prompts may hold up those who decode for long, so that none is prefilled
in more passes than another time because the machine was slower for a moment.
Writes results/gateway.json.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import orjson
import uvloop

from benchmarks.http_caller import HttpCaller
from benchmarks.loads import story_prompts
from benchmarks.local_cluster import LocalCluster, generate, local_cluster
from benchmarks.measures import Run, StreamClock, cpu_seconds, print_table, save, spread
from benchmarks.stage import Server, gateway_process
from shared.client import Cluster, connect

_PATH = "/v1/completions"
_SETTINGS = {"CLUSTER__WORKER__CONTINUOUS_BATCHING__MAX_DECODE_STALL_MS": "5000"}


async def _through_gateway(
    gateway: Server, local: LocalCluster, prompts: Sequence[list[int]], max_tokens: int
) -> Run:
    """All at once, each over a connection of its own."""
    run = Run()
    pids = {**local.processes, "gateway": gateway.pid}
    before, started = cpu_seconds(pids), time.perf_counter()
    tokens = await asyncio.gather(
        *(_stream(gateway.url, run, prompt, max_tokens) for prompt in prompts)
    )
    run.seconds = time.perf_counter() - started
    run.tokens = sum(tokens)
    after = cpu_seconds(pids)
    run.cpu_s = {name: after[name] - before[name] for name in pids}
    return run


async def _stream(url: str, run: Run, prompt: list[int], max_tokens: int) -> int:
    """The number of tokens as the stream says it at its end: an event may hold several."""
    body = {
        "model": "demo",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    clock = StreamClock(run)
    last = b""
    async with HttpCaller.connect(url) as caller:
        async for part in caller.stream(body, _PATH):
            if not part.startswith(b":"):  # a comment, so that nobody takes a wait for an end
                clock.tick()
            last = part
    end = last.removesuffix(b"\n\ndata: [DONE]\n\n").rpartition(b"data: ")[2]
    return int(orjson.loads(end)["usage"]["completion_tokens"])


async def _compare(
    local: LocalCluster, gateway: Server, streams: int, max_tokens: int, repeats: int
) -> list[dict[str, Any]]:
    prompts = story_prompts(streams)
    pairs = []
    async with connect(local.url) as cluster:
        await _warm_up(cluster, local, gateway, prompts)
        for repeat in range(repeats):
            print(f"run {repeat + 1}/{repeats}", file=sys.stderr)
            if repeat % 2 == 0:
                direct, _ = await generate(cluster, local, prompts, max_tokens)
                through = await _through_gateway(gateway, local, prompts, max_tokens)
            else:
                through = await _through_gateway(gateway, local, prompts, max_tokens)
                direct, _ = await generate(cluster, local, prompts, max_tokens)
            if through.tokens != direct.tokens:
                raise SystemExit(f"{through.tokens} tokens, but {direct.tokens} directly")
            pairs.append(
                {
                    "direct": direct.summary(),
                    "gateway": through.summary(),
                    "ratio": through.tokens_per_s / direct.tokens_per_s,
                }
            )
    return pairs


async def _warm_up(
    cluster: Cluster, local: LocalCluster, gateway: Server, prompts: Sequence[list[int]]
) -> None:
    await generate(cluster, local, prompts, 4)
    await _through_gateway(gateway, local, prompts, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with local_cluster(settings=_SETTINGS) as local, gateway_process(local.url) as gateway:
        pairs = uvloop.run(
            _compare(local, gateway, arguments.streams, arguments.max_tokens, arguments.repeats)
        )
    _report(pairs, arguments.streams)


def _report(pairs: list[dict[str, Any]], streams: int) -> None:
    ratio = spread(pair["ratio"] for pair in pairs)
    rows = []
    for side in ("direct", "gateway"):
        speed = spread(pair[side]["tokens_per_s"] for pair in pairs)
        ttft, gap = (
            {p: spread(pair[side][what][p] for pair in pairs)["median"] for p in ("p50", "p95")}
            for what in ("ttft_ms", "gap_ms")
        )
        rows.append(
            (
                side,
                f"{speed['median']:.1f} ({speed['min']:.1f}-{speed['max']:.1f})",
                *(f"{figures[p]:.0f}" for figures in (ttft, gap) for p in ("p50", "p95")),
            )
        )
    print_table(
        f"{streams} streams, greedy, medians of {len(pairs)} (minimum-maximum)",
        ("", "tokens/s", "TTFT p50 ms", "p95", "gap p50 ms", "p95"),
        rows,
    )
    print(
        f"gateway / direct: {ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f}); its CPU "
        f"share: {spread(p['gateway']['cpu_share']['gateway'] for p in pairs)['median']:.2f}"
    )
    print(f"written to {save('gateway', {'streams': streams, 'ratio': ratio, 'pairs': pairs})}")


if __name__ == "__main__":
    main()
