"""Many open streams through the gateway: what a token costs beside a bare server of events.

    python -m benchmarks.gateway_streams [--streams 256] [--steps-per-s 20] [--seconds 10]

Four simulated workers give each stream a token a step; the bare server sends the same bytes at the
same pace from memory. Both take turns. CPU is that of the serving process; messages are those that
NATS delivered to the gateway, and all that it took in. Writes results/gateway_streams.json.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import uvloop

from benchmarks.http_caller import HttpCaller
from benchmarks.measures import cpu_seconds, percentiles_ms, print_table, save, spread
from benchmarks.simulated_workers import MODEL
from benchmarks.stage import Stage, bare_server, stage

_WORKERS = 4


class Callers:
    """All streams of one side.

    Attributes:
        tokens, size_bytes: what came so far.
        gaps_s: times between the tokens of one stream, while they are noted.
    """

    def __init__(self, url: str, streams: int, tokens: int) -> None:
        self._url = url
        self._streams = streams
        self._body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Go on"}],
            "max_tokens": tokens,
            "timeout_ms": 600_000,
        }
        self.tokens = 0
        self.size_bytes = 0
        self.begun = 0
        self.gaps_s: list[float] = []
        self.noting = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._streams):
                tasks.create_task(self._one())

    async def _one(self) -> None:
        clock = asyncio.get_running_loop()
        last = None
        async with HttpCaller.connect(self._url) as caller:
            async for part in caller.stream(self._body):
                now = clock.time()
                if last is None:
                    self.begun += 1
                elif self.noting:
                    self.gaps_s.append(now - last)
                last = now
                self.tokens += part.count(b'"content":" token"')
                self.size_bytes += len(part)


async def _measure(
    url: str, pids: Mapping[str, int], arguments: argparse.Namespace
) -> dict[str, Any]:
    """What a token costs while all streams are open."""
    streams, seconds = arguments.streams, arguments.seconds
    tokens_each = int((seconds + 2 * arguments.ramp) * arguments.steps_per_s)
    callers = Callers(url, streams, tokens_each)
    running = asyncio.create_task(callers.run())
    while callers.begun < streams:
        await asyncio.sleep(0.05)
        if running.done():
            running.result()
    callers.noting = True
    cpu, tokens, size = cpu_seconds(pids), callers.tokens, callers.size_bytes
    await asyncio.sleep(seconds)
    used = {name: seconds_ - cpu[name] for name, seconds_ in cpu_seconds(pids).items()}
    tokens, size = callers.tokens - tokens, callers.size_bytes - size
    callers.noting = False
    running.cancel()  # the rest tells nothing
    with suppress(asyncio.CancelledError):
        await running
    return {
        "tokens_per_s": tokens / seconds,
        "bytes_per_token": size / tokens,
        "cpu_us_per_token": {name: s / tokens * 1e6 for name, s in used.items()},
        "gap_ms": percentiles_ms(callers.gaps_s),
    }


async def _measure_gateway(on: Stage, arguments: argparse.Namespace) -> dict[str, Any]:
    watching = asyncio.create_task(_message_rates(on, arguments.ramp, arguments.seconds))
    figures = await _measure(on.http_url, on.pids, arguments)
    return figures | {
        name: rate / figures["tokens_per_s"] for name, rate in (await watching).items()
    }


async def _message_rates(on: Stage, ramp_s: float, seconds: float) -> dict[str, float]:
    """Messages a second that NATS took in and delivered to the gateway, while streams run."""
    await asyncio.sleep(ramp_s)
    before = _messages(on)
    await asyncio.sleep(seconds / 2)
    return {name: (count - before[name]) * 2 / seconds for name, count in _messages(on).items()}


def _messages(on: Stage) -> dict[str, int]:
    connections = on.nats_figures("connz?limit=100")["connections"]
    (gateway,) = [one for one in connections if one["name"].startswith("gateway ")]
    return {
        "to_gateway": gateway["out_msgs"],
        "all": on.nats_figures("varz")["in_msgs"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--steps-per-s", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--ramp", type=float, default=4, help="seconds until all streams are open")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with (
        stage(workers=_WORKERS, steps_per_s=arguments.steps_per_s) as on,
        bare_server("--steps-per-s", str(arguments.steps_per_s)) as bare,
    ):
        for repeat in range(arguments.repeats):
            print(f"run {repeat + 1}/{arguments.repeats}", file=sys.stderr)
            runs.append(
                {
                    "bare": uvloop.run(_measure(bare.url, {"server": bare.pid}, arguments)),
                    "gateway": uvloop.run(_measure_gateway(on, arguments)),
                }
            )
    _report(runs, arguments)


def _report(runs: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    def of(side: str, *path: str) -> str:
        values = []
        for run in runs:
            value = run[side]
            for key in path:
                value = value[key]
            values.append(value)
        figures = spread(values)
        return f"{figures['median']:.3g} ({figures['min']:.3g}-{figures['max']:.3g})"

    print_table(
        f"{arguments.streams} streams, {arguments.steps_per_s:g} steps/s, "
        f"medians of {len(runs)} (minimum-maximum)",
        ("", "tokens/s", "bytes/token", "CPU us/token", "gap p50 ms", "p95"),
        [
            (
                side,
                of(side, "tokens_per_s"),
                of(side, "bytes_per_token"),
                of(side, "cpu_us_per_token", process),
                of(side, "gap_ms", "p50"),
                of(side, "gap_ms", "p95"),
            )
            for side, process in (("bare", "server"), ("gateway", "gateway"))
        ],
    )
    print_table(
        "behind the gateway",
        ("", "CPU us/token"),
        [
            (name, of("gateway", "cpu_us_per_token", name))
            for name in ("nats", "controller", "workers")
        ],
    )
    print_table(
        "NATS messages per token",
        ("", ""),
        [(name, of("gateway", name)) for name in ("to_gateway", "all")],
    )
    print(f"written to {save('gateway_streams', {'runs': runs})}")


if __name__ == "__main__":
    main()
