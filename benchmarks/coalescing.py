"""What it saves, and costs, that a controller sends dispatches together.

    python -m benchmarks.coalescing [--bursts 60] [--size 32]

Two clusters beside each other, each with a real NATS server, the real `controller` command, and
*simulated* workers that only acknowledge and end (`benchmarks.simulated_fleet`): one as it comes,
one with `max_batch: 1` and nothing held. In turn each gets a burst of requests for one worker, and
then lone ones. Counted are the messages that the worker got; timed is each request from being
published to being with the worker. Writes results/coalescing.json.
"""

import argparse
import asyncio
import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import uvloop
import yaml

from benchmarks.measures import print_table, save
from benchmarks.routing import CONTROLLER, wait_until_heard
from benchmarks.simulated_fleet import skills
from benchmarks.stage import SCRIPTS, child, nats_server
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.ids import ClientName, SkillName
from shared.settings.nats import NatsSettings

_WORKERS = 10
_SKILL = SkillName("skill-0")
_CLIENT = ClientName("bench")
_SIDES = {
    "together": {},
    "one by one": {"min_hold_ms": 0, "max_hold_ms": 0, "max_batch": 1},
}
_QUIET_S = 0.05
_LIMIT_S = 10


@dataclass(slots=True)
class _Side:
    """
    Attributes:
        messages: of each burst.
        within_s: so long it took to publish each burst.
        burst_s, lone_s: of each request from being published to being with the worker.
    """

    bus: Bus
    inbox: str
    messages: list[int] = field(default_factory=list)
    within_s: list[float] = field(default_factory=list)
    burst_s: list[float] = field(default_factory=list)
    lone_s: list[float] = field(default_factory=list)
    arrivals: dict[str, float] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, message: IncomingMessage) -> None:
        answer = orjson.loads(message.payload)
        if answer.get("done"):
            if "error" in answer:
                raise SystemExit(f"a request failed: {answer['error']['message']}")
            self.arrivals[message.subject] = answer["arrived_s"]
            self.came.set()

    async def ask(self, count: int) -> list[tuple[float, float]]:
        """When each of so many requests was published, and when it was with the worker."""
        self.arrivals.clear()
        published: dict[str, float] = {}
        body = {"messages": [{"role": "user", "content": "What is on this line? " * 20}]}
        for number in range(count):
            inbox = f"{self.inbox}.{number}"
            payload = orjson.dumps({**body, "seed": number})
            published[inbox] = time.perf_counter()
            await self.bus.publish(subjects.infer(_CLIENT, _SKILL), payload, reply=inbox)
        async with asyncio.timeout(_LIMIT_S):
            while len(self.arrivals) < count:
                self.came.clear()
                await self.came.wait()
        return [(at, self.arrivals[inbox]) for inbox, at in published.items()]


@contextlib.contextmanager
def _cluster(name: str) -> Iterator[str]:
    """Start a cluster with these settings; gives its NATS URL."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-coalescing-")))
        nats_url, _, _ = stack.enter_context(nats_server(folder))
        config = folder / "cluster.yaml"
        settings = {"skills": dict(skills()), "controller": {"dispatch": _SIDES[name]}}
        config.write_text(yaml.safe_dump(settings))
        controller = [str(SCRIPTS / "controller"), "--config", str(config), "--nats", nats_url]
        fleet = [sys.executable, "-m", "benchmarks.simulated_fleet", "--nats", nats_url]
        stack.enter_context(child([*controller, "--id", CONTROLLER], folder / "c.log"))
        stack.enter_context(child([*fleet, "--workers", str(_WORKERS)], folder / "w.log"))
        yield nats_url


async def _run(urls: dict[str, str], arguments: argparse.Namespace) -> dict[str, _Side]:
    sides: dict[str, _Side] = {}
    for name, url in urls.items():
        await wait_until_heard(url, _WORKERS)
        bus = await Bus.connect(NatsSettings(servers=[url]), name="bench", wait_s=10)
        side = sides[name] = _Side(bus, bus.new_inbox())
        await bus.subscribe(f"{side.inbox}.*", side.take)
        for _ in range(5):
            await side.ask(arguments.size)  # warm
    orders = itertools.cycle((list(sides.values()), list(sides.values())[::-1]))
    for order, _ in zip(orders, range(arguments.bursts), strict=False):
        for side in order:
            await asyncio.sleep(_QUIET_S)
            times = await side.ask(arguments.size)
            side.messages.append(len({arrived for _, arrived in times}))
            side.within_s.append(times[-1][0] - times[0][0])
            side.burst_s += [arrived - published for published, arrived in times]
            for _ in range(arguments.lone):
                await asyncio.sleep(_QUIET_S)
                ((published, arrived),) = await side.ask(1)
                side.lone_s.append(arrived - published)
    for side in sides.values():
        await side.bus.close()
    return sides


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)] * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bursts", type=int, default=60)
    parser.add_argument("--size", type=int, default=32, help="requests in a burst")
    parser.add_argument("--lone", type=int, default=4, help="requests alone after each burst")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(_cluster(name)) for name in _SIDES}
        sides = uvloop.run(_run(urls, arguments))
    figures = {
        name: {
            "messages_per_burst": statistics.fmean(side.messages),
            "published_within_ms": _at(side.within_s, 0.95),
            "burst_p50_ms": _at(side.burst_s, 0.5),
            "burst_p95_ms": _at(side.burst_s, 0.95),
            "lone_p50_ms": _at(side.lone_s, 0.5),
            "lone_p95_ms": _at(side.lone_s, 0.95),
        }
        for name, side in sides.items()
    }
    titles = next(iter(figures.values()))
    print_table(
        f"bursts of {arguments.size}, and lone requests: from being published to being with the "
        "worker",
        ("", *(title.replace("_", " ") for title in titles)),
        [(name, *(f"{each:.2f}" for each in one.values())) for name, one in figures.items()],
    )
    together, single = figures["together"], figures["one by one"]
    fewer = 1 - together["messages_per_burst"] / single["messages_per_burst"]
    added = {name: together[name] - single[name] for name in titles if name[:4] in ("burs", "lone")}
    print(f"{100 * fewer:.1f} % fewer messages; added, ms: ", end="")
    print(", ".join(f"{name.removesuffix('_ms')} {ms:+.2f}" for name, ms in added.items()))
    result = {"options": vars(arguments), "figures": figures, "fewer": fewer, "added_ms": added}
    print(f"written to {save('coalescing', result)}")


if __name__ == "__main__":
    main()
