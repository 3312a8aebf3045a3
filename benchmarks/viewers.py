"""What people who watch a large cluster cost the gateway: CPU and bytes per viewer.

    python -m benchmarks.viewers [--workers 1000] [--requests 2000] [--viewers 0,1,11]

A real NATS server, the real `controller` and `gateway` commands; *simulated* workers with 10 models
each (`benchmarks.simulated_fleet`), and clients that keep so many requests open. The viewers read
every view of `/cluster/events`. The limit is 5% of a core for each viewer beyond the first, whose
polls all others share. Writes results/viewers.json.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop
import yaml

from benchmarks.children import started
from benchmarks.measures import cpu_seconds, print_table, save, shown, spread
from benchmarks.routing import CONTROLLER, wait_until_heard
from benchmarks.simulated_fleet import skills
from benchmarks.stage import SCRIPTS, child, gateway_process, nats_server

_ANSWER_S = 20.0
_WARM_UP_S = 4.0


@dataclass(slots=True)
class Reading:
    """What the viewers together received."""

    events: Counter[str] = field(default_factory=Counter)
    bytes: int = 0


@contextlib.contextmanager
def _cluster(workers: int) -> Iterator[tuple[str, str, dict[str, int]]]:
    """The URLs of NATS and the gateway, and the pids of controller and gateway."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-viewers-")))
        nats_url, _, _ = stack.enter_context(nats_server(folder))
        config = folder / "cluster.yaml"
        config.write_text(yaml.safe_dump({"skills": dict(skills())}))
        controller = [str(SCRIPTS / "controller"), "--config", str(config), "--nats", nats_url]
        fleet = [sys.executable, "-m", "benchmarks.simulated_fleet", "--nats", nats_url]
        fleet += ["--workers", str(workers), "--answer-s", str(_ANSWER_S)]
        quiet = {"CLUSTER__LOGGING__LEVEL": "warning"}
        pids = {
            "controller": stack.enter_context(
                child([*controller, "--id", CONTROLLER], folder / "c.log", quiet)
            ).pid
        }
        stack.enter_context(child(fleet, folder / "w.log"))
        uvloop.run(wait_until_heard(nats_url, workers))
        gateway = stack.enter_context(gateway_process(nats_url, quiet))
        yield nats_url, gateway.url, pids | {"gateway": gateway.pid}


@contextlib.contextmanager
def _open_requests(nats_url: str, requests: int, seconds: float) -> Iterator[None]:
    """Clients that keep so many requests open."""
    load = [sys.executable, "-m", "benchmarks.routing_load", "--nats", nats_url]
    load += ["--client", "client-0"]
    order = json.dumps({"seconds": seconds, "rate": 0, "in_flight": requests})
    with started(load, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as client:
        assert client.stdin is not None
        client.stdin.write(order + "\n")
        client.stdin.flush()
        yield


async def _view(url: str, viewers: int, seconds: float) -> Reading:
    """Read all views as so many viewers do, for some seconds."""
    reading = Reading()

    async def read(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", f"{url}/cluster/events") as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                reading.bytes += len(line)
                if line.startswith("event: "):
                    reading.events[line.removeprefix("event: ")] += 1

    async with httpx.AsyncClient(timeout=None) as client:
        tasks = [asyncio.create_task(read(client)) for _ in range(viewers)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if not isinstance(result, asyncio.CancelledError):
            raise SystemExit(f"a viewer was disconnected: {result!r}")
    return reading


def _measure(url: str, pids: dict[str, int], viewers: int, seconds: float) -> dict[str, Any]:
    """The CPU share of each process while so many watch, and what each viewer received."""
    uvloop.run(_view(url, viewers, _WARM_UP_S))
    before, begun = cpu_seconds(pids), time.perf_counter()
    reading = uvloop.run(_view(url, viewers, seconds))
    taken, after = time.perf_counter() - begun, cpu_seconds(pids)
    each = max(1, viewers) * taken
    return {
        **{f"{name}_share": (after[name] - before[name]) / taken for name in pids},
        "bytes_per_s": reading.bytes / each,
        "events_per_s": {name: count / each for name, count in reading.events.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1000, help="simulated")
    parser.add_argument("--requests", type=int, default=2000, help="open all the time")
    parser.add_argument("--viewers", default="0,1,11", help="at once; several with commas")
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    counts = [int(viewers) for viewers in arguments.viewers.split(",")]
    runs: dict[int, list[dict[str, Any]]] = {viewers: [] for viewers in counts}
    total_s = (arguments.seconds + _WARM_UP_S + 3) * len(counts) * arguments.repeats + 30
    with _cluster(arguments.workers) as (nats_url, url, pids):
        with _open_requests(nats_url, arguments.requests, total_s):
            time.sleep(_WARM_UP_S)
            for _ in range(arguments.repeats):
                for viewers in counts:
                    runs[viewers].append(_measure(url, pids, viewers, arguments.seconds))
    most, least = max(counts), min(count for count in counts if count)
    pairs = zip(runs[most], runs[least], strict=True)
    shares = [
        (many["gateway_share"] - few["gateway_share"]) / max(1, most - least) for many, few in pairs
    ]
    result = {"runs": runs, "share_per_viewer": spread(shares), "options": vars(arguments)}
    print_table(
        f"{arguments.workers} simulated workers, {arguments.requests} open requests",
        ("viewers", "gateway CPU %", "controller CPU %", "kB/s of each", "most events/s of a view"),
        [
            (
                str(viewers),
                shown(spread([100 * run["gateway_share"] for run in measured]), 1),
                shown(spread([100 * run["controller_share"] for run in measured]), 1),
                shown(spread([run["bytes_per_s"] / 1000 for run in measured]), 0),
                shown(spread([max(run["events_per_s"].values(), default=0.0) for run in measured])),
            )
            for viewers, measured in runs.items()
        ],
    )
    print(f"CPU of the gateway for each further viewer: {shown(spread(shares), 4)} of a core")
    print(f"written to {save('viewers', result)}")


if __name__ == "__main__":
    main()
