"""What clients notice while controllers die, hang, leave and start again, a NATS server dies, or
JetStream is away.

    python -m benchmarks.failover [--cases kill,stop,restart,nats,jetstream] [--times 20]

Three real `controller` commands, two real workers whose engines are *simulated*
(`benchmarks.simulated_engines`), a real NATS server, or three where one dies. Long streams run all
the time, their longest gap is compared with that of an undisturbed time; a new request is sent 20
times a second with the client library, and as often by a client without one that only publishes
again after a second of silence (docs/wire.md). Afterwards all must have ended well. Writes
results/failover.json.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks.children import started
from benchmarks.measures import print_table, save
from benchmarks.nats_cluster import NatsCluster, nats_cluster
from benchmarks.simulated_engines import MODEL
from benchmarks.stage import SCRIPTS
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.client import Cluster
from shared.codec import decode
from shared.errors import BusError, ClusterError, DecodeError
from shared.ids import ClientName, SkillName
from shared.messages.health import ClusterHealth, LeaderInfo
from shared.settings.nats import NatsSettings

CONTROLLERS = ("c-1", "c-2", "c-3")
_SETTINGS = {
    "CLUSTER__SKILLS": json.dumps({"chat": [MODEL]}),
    "CLUSTER__LOGGING__LEVEL": "warning",
}
_CLIENT, _SKILL = ClientName("local"), SkillName("chat")
_EVERY_S = 0.05
_STREAMS = 8
_AGAIN_S = 1.0
_SILENT_S = 3.0
_PATIENCE_S = 60.0
_LIMIT_S = 60.0


@dataclass(slots=True)
class Asked:
    """One request; times on the monotonic clock.

    Attributes:
        accepted_at: when a worker was heard of.
        again: how often it was published again, and `nobody`, how often nobody was there.
        end: `done`, or the code of its error.
        answered: it has ended, or nobody is there.
    """

    asked_at: float
    accepted_at: float | None = None
    again: int = 0
    nobody: int = 0
    end: str | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Heard:
    """All that clients noticed.

    Attributes:
        gaps: between tokens of the long streams: when each ended, and how long it was.
        stale: orders to workers, and messages to clients, of a leader that another one followed.
    """

    requests: list[Asked] = field(default_factory=list)
    plain: list[Asked] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    failed_streams: list[str] = field(default_factory=list)
    stale: int = 0

    def longest_gap_s(self, since: float, until: float) -> float:
        return max((gap for at, gap in self.gaps if since <= at <= until), default=0.0)


class Processes:
    """Controllers and workers, by name."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, urls: str) -> None:
        self._stack = stack
        self._folder = folder
        self._urls = urls
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start_controller(self, name: str) -> None:
        self._start(name, [str(SCRIPTS / "controller"), "--nats", self._urls, "--id", name])

    def start_workers(self) -> None:
        command = [sys.executable, "-m", "benchmarks.simulated_engines", "--nats", self._urls]
        self._start("workers", [*command, "--worker", "w-1", "--worker", "w-2"])

    def _start(self, name: str, command: list[str]) -> None:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("ab"))
        self.running[name] = self._stack.enter_context(
            started(command, _SETTINGS, stdout=log, stderr=log)
        )

    def send(self, name: str, number: signal.Signals) -> None:
        self.running[name].send_signal(number)

    async def ended(self, name: str) -> None:
        await asyncio.to_thread(self.running[name].wait)


class Watch:
    """Asks all the time, and keeps what is heard."""

    def __init__(self, bus: Bus) -> None:
        self.heard = Heard()
        self._bus = bus
        self._cluster = Cluster(bus, _CLIENT)
        self._plain: dict[str, Asked] = {}
        self._inbox = bus.new_inbox()
        self._term = 0
        self._asking = True

    async def run(self) -> None:
        """Until `stop`; then until all have ended."""
        await self._bus.subscribe(f"{self._inbox}.*", self._on_plain)
        await self._bus.subscribe("mlx.worker.*.infer", self._on_order)
        await self._bus.subscribe("mlx.worker.*.control.*", self._on_order)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_STREAMS):
                tasks.create_task(self._stream())
            number = 0
            while self._asking:
                number += 1
                tasks.create_task(self._ask())
                tasks.create_task(self._ask_plainly(f"plain-{number}"))
                await asyncio.sleep(_EVERY_S)

    def stop(self) -> None:
        self._asking = False

    async def _stream(self) -> None:
        """One long answer after another."""
        while self._asking:
            last_at = None
            try:
                async with self._cluster.stream(prompt="x" * 400, max_tokens=400) as stream:
                    async for _ in stream:
                        now = time.monotonic()
                        if last_at is not None:
                            self.heard.gaps.append((now, now - last_at))
                        last_at = now
            except ClusterError as error:
                self.heard.failed_streams.append(f"{error.code}: {error.message}")

    async def _ask(self) -> None:
        asked = Asked(time.monotonic())
        self.heard.requests.append(asked)
        try:
            async with self._cluster.stream(prompt="x" * 40, max_tokens=4) as stream:
                async for _ in stream.updates(at_least_every_s=0.02):
                    if asked.accepted_at is None and stream.worker is not None:
                        asked.accepted_at = time.monotonic()
            asked.end = "done"
        except ClusterError as error:
            asked.end = error.code

    async def _ask_plainly(self, name: str) -> None:
        asked = self._plain[name] = Asked(time.monotonic())
        self.heard.plain.append(asked)
        body = orjson.dumps({"request_id": name, "prompt": "x" * 40, "max_tokens": 4})
        until = time.monotonic() + _PATIENCE_S
        while asked.end is None and time.monotonic() < until:
            asked.answered.clear()
            with contextlib.suppress(BusError):
                await self._bus.publish(
                    subjects.infer(_CLIENT, _SKILL), body, reply=f"{self._inbox}.{name}"
                )
            wait_s = _AGAIN_S if asked.accepted_at is None else _SILENT_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.answered.wait(), wait_s)
            asked.again += asked.end is None
        del self._plain[name]

    async def _on_plain(self, message: IncomingMessage) -> None:
        asked = self._plain.get(message.subject.rpartition(".")[2])
        if asked is None:
            return
        if message.no_responders:
            asked.nobody += 1
            await asyncio.sleep(_EVERY_S)
            asked.answered.set()
            return
        told = orjson.loads(message.payload)
        is_old = told["worker"] is None and told["attempt"] < 1000 * (self._term - 1)
        if is_old and told.get("reason") != "leader_change":  # a new one that asks the workers
            self.heard.stale += 1
        if told["worker"] is not None and asked.accepted_at is None:
            asked.accepted_at = time.monotonic()
        if told.get("done"):
            asked.end = told["error"]["code"] if "error" in told else "done"
            asked.answered.set()

    async def _on_order(self, message: IncomingMessage) -> None:
        """The client was told before, or not, that another one leads: each term is seen here."""
        term = orjson.loads(message.payload).get("term") or 0
        self.heard.stale += 0 < term < self._term
        self._term = max(self._term, term)


class Bench:
    """A running cluster under load."""

    def __init__(self, bus: Bus, watch: Watch, processes: Processes, nats: NatsCluster) -> None:
        self.bus = bus
        self.watch = watch
        self.processes = processes
        self.nats = nats

    async def health(self) -> ClusterHealth | None:
        with contextlib.suppress(BusError, DecodeError):
            answer = await self.bus.request(subjects.HEALTH_CLUSTER, b"", timeout_s=0.3)
            return decode(ClusterHealth, answer.payload)
        return None

    async def leader(self, after: int = 0) -> LeaderInfo:
        """Who leads, in a term after this one."""
        async with asyncio.timeout(_LIMIT_S):
            while True:
                health = await self.health()
                if health is not None and health.leader and health.leader.term > after:
                    return health.leader
                await asyncio.sleep(0.02)

    async def until_all_are_there(self) -> None:
        async with asyncio.timeout(_LIMIT_S):
            while True:
                health = await self.health()
                ready = health and [each for each in health.controllers if each.state == "ready"]
                if health and ready and len(ready) == 3 and len(health.workers) == 2:
                    return
                await asyncio.sleep(0.05)

    async def accepted_after(self, moment: float) -> float:
        """Seconds until one was accepted that was asked for afterwards."""
        async with asyncio.timeout(_LIMIT_S):
            while True:
                requests = [*self.watch.heard.requests, *self.watch.heard.plain]
                times = [
                    one.accepted_at
                    for one in requests[-4000:]
                    if one.asked_at >= moment and one.accepted_at is not None
                ]
                if times:
                    return min(times) - moment
                await asyncio.sleep(0.01)


Case = Callable[[Bench, int], Awaitable[list[float]]]
"""Disturbs a cluster so many times; returns how long each time nothing new was accepted."""


async def kill(bench: Bench, times: int) -> list[float]:
    """The leader is killed."""
    seconds = []
    for _ in range(times):
        leader = await bench.leader()
        await asyncio.sleep(1.5)
        moment = time.monotonic()
        bench.processes.send(leader.id, signal.SIGKILL)
        seconds.append(await bench.accepted_after(moment))
        await bench.processes.ended(leader.id)
        bench.processes.start_controller(leader.id)
        await bench.until_all_are_there()
    return seconds


async def stop(bench: Bench, times: int) -> list[float]:
    """The leader stands still (SIGSTOP) for 10 s, and goes on."""
    seconds = []
    for _ in range(max(1, times // 4)):
        leader = await bench.leader()
        moment = time.monotonic()
        bench.processes.send(leader.id, signal.SIGSTOP)
        seconds.append(await bench.accepted_after(moment))
        await asyncio.sleep(max(0.0, 10 - (time.monotonic() - moment)))
        bench.processes.send(leader.id, signal.SIGCONT)
        await asyncio.sleep(3)
        await bench.until_all_are_there()
    return seconds


async def restart(bench: Bench, times: int) -> list[float]:
    """All three controllers are asked to end and started again, one after another."""
    seconds = []
    for _ in range(max(1, times // 4)):
        for name in CONTROLLERS:
            moment = time.monotonic()
            bench.processes.send(name, signal.SIGTERM)
            seconds.append(await bench.accepted_after(moment))
            await bench.processes.ended(name)
            bench.processes.start_controller(name)
            await bench.until_all_are_there()
    return seconds


async def nats(bench: Bench, times: int) -> list[float]:
    """A NATS server is killed, and the leader with it."""
    seconds = []
    for number in range(max(1, times // 4)):
        leader = await bench.leader()
        moment = time.monotonic()
        bench.processes.send(leader.id, signal.SIGKILL)
        bench.nats.kill(number % 3)
        seconds.append(await bench.accepted_after(moment))
        await bench.processes.ended(leader.id)
        bench.processes.start_controller(leader.id)
        await asyncio.sleep(5)
        bench.nats.start(number % 3)
        await asyncio.sleep(5)
        await bench.until_all_are_there()
    return seconds


async def jetstream(bench: Bench, times: int) -> list[float]:
    """Two of three NATS servers are away for two minutes, and JetStream with them."""
    moment = time.monotonic()
    bench.nats.kill(0)
    bench.nats.kill(1)
    seconds = [await bench.accepted_after(moment)]
    await asyncio.sleep(min(120.0, 6.0 * times))
    bench.nats.start(0)
    bench.nats.start(1)
    await asyncio.sleep(8)
    await bench.until_all_are_there()
    return seconds


_CASES: dict[str, tuple[Case, int]] = {
    "kill": (kill, 1), "stop": (stop, 1), "restart": (restart, 1), "nats": (nats, 3),
    "jetstream": (jetstream, 3),
}  # fmt: skip
"""Each with its number of NATS servers."""


@contextlib.asynccontextmanager
async def _bench(stack: contextlib.ExitStack, servers: int) -> AsyncIterator[Bench]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-failover-")))
    cluster = stack.enter_context(nats_cluster(folder, servers))
    processes = Processes(stack, folder, ",".join(cluster.urls))
    for name in CONTROLLERS:
        processes.start_controller(name)
    processes.start_workers()
    bus = await Bus.connect(NatsSettings(servers=cluster.urls), name="bench", wait_s=30)
    watch = Watch(bus)
    bench = Bench(bus, watch, processes, cluster)
    await bench.until_all_are_there()
    running = asyncio.create_task(watch.run())
    try:
        yield bench
    finally:
        watch.stop()
        await asyncio.wait_for(running, _PATIENCE_S + 60)
        await bus.close()


async def _measure(name: str, times: int) -> dict[str, Any]:
    case, servers = _CASES[name]
    with contextlib.ExitStack() as stack:
        async with _bench(stack, servers) as bench:
            await asyncio.sleep(3)
            calm_from = time.monotonic()
            await asyncio.sleep(10)
            began_at = time.monotonic()
            seconds = await case(bench, times)
            ended_at = time.monotonic()
        heard = bench.watch.heard
    return {
        "accepted_again_s": seconds,
        "calm_gap_s": heard.longest_gap_s(calm_from, began_at),
        "longest_gap_s": heard.longest_gap_s(began_at, ended_at),
        "requests": dict(Counter(one.end for one in heard.requests)),
        "plain": dict(Counter(_outcome(one) for one in heard.plain)),
        "slowest_s": max(
            (one.accepted_at - one.asked_at for one in heard.requests if one.accepted_at),
            default=0.0,
        ),
        "failed_streams": heard.failed_streams,
        "stale": heard.stale,
    }


def _outcome(one: Asked) -> str:
    """How a client without the library came to its answer."""
    if one.end != "done":
        return f"ended: {one.end}"
    if not one.again:
        return "at once"
    return "nobody was there, asked again" if one.nobody else "silence, asked again"


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[max(0, -(-95 * len(seconds) // 100) - 1)]


def _rows(results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, told in results.items():
        seconds = told["accepted_again_s"]
        yield (
            name,
            str(len(seconds)),
            f"{statistics.median(seconds):.2f} / {_p95(seconds):.2f} / {max(seconds):.2f}",
            f"{told['calm_gap_s']:.2f} / {told['longest_gap_s']:.2f}",
            " ".join(f"{end}: {count}" for end, count in told["requests"].items()),
            "; ".join(f"{how}: {count}" for how, count in sorted(told["plain"].items())),
            str(len(told["failed_streams"])),
            str(told["stale"]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(_CASES), help="several with commas")
    parser.add_argument("--times", type=int, default=20, help="so many kills; others fewer")
    arguments = parser.parse_args()
    names = arguments.cases.split(",")
    if unknown := set(names) - _CASES.keys():
        parser.error(f"--cases: no {', '.join(sorted(unknown))}; there are: {', '.join(_CASES)}")
    results = {}
    for name in names:
        print(f"{name}: {(_CASES[name][0].__doc__ or '').strip()}", file=sys.stderr, flush=True)
        results[name] = uvloop.run(_measure(name, arguments.times))
    print_table(
        "what clients notice: seconds; median / p95 / worst",
        (
            "case", "times", "accepted again", "longest gap: calm / disturbed", "requests",
            "without the library", "failed streams", "stale messages",
        ),
        list(_rows(results)),
    )  # fmt: skip
    print(f"written to {save('failover', {'options': vars(arguments), 'results': results})}")


if __name__ == "__main__":
    main()
