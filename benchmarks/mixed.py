"""Clients in a closed loop with mixed prompts: the cluster beside mlx_lm.server.

    python -m benchmarks.mixed [--clients 8,32] [--repeats 3] [--requests 3] [--engines 1,2]

Each client sends one request after another: prompts of 50 to 400 tokens that share nothing,
48 tokens of answer, greedy, staggered starts. All sides run on the same machine with the same
BLAS, model, cores and prompts, one after the other, in turn: the cluster with one engine, and
elsewhere than on a Mac with two that share the cores; `mlx_lm.server` as it comes and with
`--prompt-concurrency 1`. Beside them stands what the sum of the parts allows: prefill alone,
then decoding at the full batch, by bare passes in one process. Writes results/mixed.json.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx

from benchmarks.children import started
from benchmarks.loads import mixed_prompts
from benchmarks.local_cluster import local_cluster
from benchmarks.measures import Run, StreamClock, print_table, save, spread
from benchmarks.plain_mlx_lm import PlainProcess
from benchmarks.threads import as_many_threads
from shared.client import connect
from worker import demo_model

_SHORTEST = 50
_STAGGER_S = 0.1
_ENGINES = "1" if sys.platform == "darwin" else "1,2"

Ask = Callable[[list[int], int, StreamClock], Awaitable[None]]
"""Has a prompt answered with so many tokens."""
Client = Callable[[], contextlib.AbstractAsyncContextManager[Ask]]
Start = Callable[[], contextlib.AbstractContextManager[Client]]
"""Starts a side; what that yields opens a client of it."""
Runs = dict[int, dict[str, list[dict[str, Any]]]]
"""By clients and side, one for each repeat."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="8,32")
    parser.add_argument("--requests", type=int, default=3, help="of each client")
    parser.add_argument("--longest", type=int, default=400, help="tokens of a prompt")
    parser.add_argument("--max-tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engines", default=_ENGINES, help="of the cluster")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.clients.split(",")]
    clusters = {
        f"cluster, engines: {count}": functools.partial(_cluster, count)
        for count in arguments.engines.split(",")
    }
    servers = {
        "mlx_lm.server": functools.partial(_server, []),
        "mlx_lm.server, 1 prompt": functools.partial(_server, ["--prompt-concurrency", "1"]),
    }
    sides: dict[str, Start] = {**clusters, **servers}
    runs: Runs = {count: {side: [] for side in sides} for count in counts}
    for repeat in range(arguments.repeats):
        for side, start in sides.items():
            with start() as client:  # anew each time, alone: an idle server still uses memory
                for count in counts:
                    print(f"run {repeat + 1}/{arguments.repeats}, {count}: {side}", file=sys.stderr)
                    prompts = mixed_prompts(
                        count * arguments.requests, _SHORTEST, arguments.longest, repeat
                    )
                    run = asyncio.run(_closed_loop(client, prompts, count, arguments.max_tokens))
                    runs[count][side].append(run.summary())
    with PlainProcess(str(demo_model.folder())) as plain:
        limits = {count: _sum_of_parts(plain, count, arguments) for count in counts}
    _report(runs, limits, list(servers), arguments)


@contextlib.contextmanager
def _cluster(engines: str) -> Iterator[Client]:
    with local_cluster(settings={"CLUSTER__WORKER__ENGINES__COUNT": engines}) as local:
        yield lambda: _cluster_client(local.url)


@contextlib.asynccontextmanager
async def _cluster_client(url: str) -> AsyncIterator[Ask]:
    async with connect(url) as cluster:

        async def ask(prompt: list[int], max_tokens: int, clock: StreamClock) -> None:
            async for chunk in cluster.stream(
                prompt=prompt, max_tokens=max_tokens, temperature=0, timeout_ms=600_000
            ):
                clock.tick(len(chunk.token_ids))

        yield ask


@contextlib.asynccontextmanager
async def _server_client(url: str) -> AsyncIterator[Ask]:
    limits = httpx.Limits(max_connections=256)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:

        async def ask(prompt: list[int], max_tokens: int, clock: StreamClock) -> None:
            body = {"prompt": _text(prompt), "max_tokens": max_tokens, "temperature": 0.0,
                    "stream": True}  # fmt: skip
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        choice = json.loads(line[6:])["choices"][0]
                        clock.tick(1 if choice.get("text") else 0)

        yield ask


@contextlib.contextmanager
def _server(options: list[str]) -> Iterator[Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "benchmarks.mlx_lm_server", "--model", str(demo_model.folder())),
        *("--port", str(port), "--decode-concurrency", "64", "--log-level", "ERROR"),
    ]
    with started([*command, *options], as_many_threads()) as process:
        url = f"http://127.0.0.1:{port}"
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/health", timeout=5)
                break
            if process.poll() is not None:
                raise SystemExit("mlx_lm.server did not start")
            time.sleep(0.2)
        yield lambda: _server_client(url)


async def _closed_loop(
    client: Client,
    prompts: list[list[int]],
    count: int,
    max_tokens: int,
) -> Run:
    run = Run()
    waiting = list(prompts)

    async with client() as ask:
        await ask(prompts[0][:8], max_tokens, StreamClock(Run()))  # warm

        async def one_client(number: int) -> None:
            await asyncio.sleep(_STAGGER_S * number)
            while waiting:
                await ask(waiting.pop(), max_tokens, StreamClock(run))

        started = time.perf_counter()
        await asyncio.gather(*(one_client(number) for number in range(count)))
        run.seconds = time.perf_counter() - started
    return run


def _sum_of_parts(plain: PlainProcess, count: int, arguments: argparse.Namespace) -> float:
    """Tokens/s of a machine that prefills each prompt alone and decodes at the full batch."""
    mean, tokens = (_SHORTEST + arguments.longest) // 2, arguments.max_tokens
    prefill_s = plain.prefill(mean, mean)
    step_s = statistics.median(plain.forward(mixed_prompts(count, mean, mean), tokens))
    return float(tokens / (prefill_s + tokens * step_s / count))


def _report(
    runs: Runs, limits: dict[int, float], servers: list[str], arguments: argparse.Namespace
) -> None:
    rows, medians = [], {}
    for count, sides in runs.items():
        speeds = {side: spread(run["tokens_per_s"] for run in some) for side, some in sides.items()}
        firsts = {
            side: spread(run["ttft_ms"]["p50"] for run in some) for side, some in sides.items()
        }
        best_speed = max(speeds[side]["median"] for side in servers)
        best_first = min(firsts[side]["median"] for side in servers)
        medians[count] = {"tokens_per_s": speeds, "ttft_p50_ms": firsts, "limit": limits[count]}
        for side in sides:
            speed, first = speeds[side], firsts[side]
            rows.append(
                (
                    f"{count} clients, {side}",
                    f"{speed['median']:.1f} ({speed['min']:.1f}-{speed['max']:.1f})",
                    f"{speed['median'] / best_speed:.2f}",
                    f"{speed['median'] / limits[count]:.2f}",
                    f"{first['median']:.0f} ({first['min']:.0f}-{first['max']:.0f})",
                    f"{first['median'] / best_first:.2f}",
                )
            )
    print_table(
        f"prompts of {_SHORTEST}-{arguments.longest} tokens, {arguments.max_tokens} tokens each; "
        f"medians of {arguments.repeats} (minimum-maximum)",
        ("", "tokens/s", "of the better server", "of the sum of the parts", "TTFT p50 ms",
         "of the better"),
        rows,
    )  # fmt: skip
    print(f"written to {save('mixed', {'medians': medians, 'runs': runs})}")


def _text(prompt: list[int]) -> str:
    from benchmarks.loads import tokenizer

    return str(tokenizer().decode(prompt))


if __name__ == "__main__":
    main()
