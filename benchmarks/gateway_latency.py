"""What the gateway and the cluster behind it add to an answer that takes no time.

    python -m benchmarks.gateway_latency [--requests 500] [--seconds 4] [--repeats 5]

A simulated worker answers at once. Beside it: the NATS client on the same cluster, and a bare HTTP
server that says the same from memory. One caller after another question by question for the
latency, then 64 connections for the rate; the sides take turns. Writes
results/gateway_latency.json.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from benchmarks.http_caller import HttpCaller
from benchmarks.measures import cpu_seconds, print_table, save, spread
from benchmarks.simulated_workers import MODEL
from benchmarks.stage import bare_server, stage
from shared.client import connect

_CONNECTIONS = 64
_TOKENS = 16
_WARM_UP = 50
_BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": _TOKENS,
}

Ask = Callable[[], Awaitable[object]]
Open = Callable[[], contextlib.AbstractAsyncContextManager[Ask]]


def _http(url: str) -> Open:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Ask]:
        async with HttpCaller.connect(url) as caller:
            yield lambda: caller.ask(_BODY)

    return opened


def _nats(url: str) -> Open:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Ask]:
        async with connect(url) as cluster:
            yield lambda: cluster.generate(**_BODY)

    return opened


async def _latencies(side: Open, requests: int) -> dict[str, float]:
    """In milliseconds, of one question at a time."""
    taken = []
    async with side() as ask:
        for number in range(_WARM_UP + requests):
            begun = time.perf_counter()
            await ask()
            if number >= _WARM_UP:
                taken.append((time.perf_counter() - begun) * 1000)
    taken.sort()
    return {"p50": taken[len(taken) // 2], "p99": taken[int(len(taken) * 0.99)]}


async def _rate(side: Open, pids: Mapping[str, int], seconds: float) -> dict[str, Any]:
    """Answers a second while every connection asks again as soon as it was answered, and the
    milliseconds of CPU that each process used for one."""
    answers, before = 0, cpu_seconds(pids)

    async def caller() -> None:
        nonlocal answers
        async with side() as ask:
            while time.perf_counter() < end:
                await ask()
                answers += 1

    end = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as tasks:
        for _ in range(_CONNECTIONS):
            tasks.create_task(caller())
    after = cpu_seconds(pids)
    return {
        "requests_per_s": answers / seconds,
        "cpu_ms": {name: (after[name] - before[name]) / answers * 1000 for name in pids},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with stage(workers=1, steps_per_s=0) as on, bare_server() as bare:
        sides = {"bare": _http(bare.url), "nats": _nats(on.nats_url), "gateway": _http(on.http_url)}
        pids = {"bare": bare.pid, "caller": os.getpid(), **on.pids}
        for repeat in range(arguments.repeats):
            print(f"run {repeat + 1}/{arguments.repeats}", file=sys.stderr)
            latency = {
                name: uvloop.run(_latencies(side, arguments.requests))
                for name, side in sides.items()
            }
            rate = {
                name: uvloop.run(_rate(side, pids, arguments.seconds))
                for name, side in sides.items()
            }
            runs.append({"latency_ms": latency, "load": rate})
    _report(runs, list(sides))


def _report(runs: list[dict[str, Any]], sides: list[str]) -> None:
    def latency(side: str, percentile: str) -> str:
        figures = spread(run["latency_ms"][side][percentile] for run in runs)
        return f"{figures['median']:.2f} ({figures['min']:.2f}-{figures['max']:.2f})"

    def rate(side: str) -> str:
        figures = spread(run["load"][side]["requests_per_s"] for run in runs)
        return f"{figures['median']:.0f} ({figures['min']:.0f}-{figures['max']:.0f})"

    def cpu(side: str, process: str) -> str:
        figures = spread(run["load"][side]["cpu_ms"][process] for run in runs)
        return f"{figures['median']:.2f}"

    print_table(
        f"answers of {_TOKENS} tokens that take no time, medians of {len(runs)} (minimum-maximum)",
        ("", "p50 ms", "p99 ms", f"requests/s at {_CONNECTIONS}"),
        [(side, latency(side, "p50"), latency(side, "p99"), rate(side)) for side in sides],
    )
    processes = list(runs[0]["load"]["bare"]["cpu_ms"])
    print_table(
        "CPU ms of each process per answer",
        ("", *processes),
        [(side, *(cpu(side, process) for process in processes)) for side in sides],
    )
    added = {
        percentile: spread(
            run["latency_ms"]["gateway"][percentile] - run["latency_ms"]["bare"][percentile]
            for run in runs
        )["median"]
        for percentile in ("p50", "p99")
    }
    print(f"added to the bare server: p50 {added['p50']:.2f} ms, p99 {added['p99']:.2f} ms")
    print(f"written to {save('gateway_latency', {'added_ms': added, 'runs': runs})}")


if __name__ == "__main__":
    main()
