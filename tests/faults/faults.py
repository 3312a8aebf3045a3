"""Faults of whole processes: killed, or stopped for a while as a sleeping Mac is."""

import asyncio
import contextlib
import random
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import psutil

from tests.processes import ClusterProcess

Component = Literal["engine", "worker", "controller", "nats"]
How = Literal["kill", "stop"]
COMPONENTS: tuple[Component, ...] = ("engine", "worker", "controller", "nats")
WAYS: tuple[How, ...] = ("kill", "stop")

_SHORT_STOP_S = (1.0, 2.0)
_LONG_STOP_S: dict[Component, tuple[float, float]] = {
    "engine": (15.0, 17.0),
    "worker": (6.0, 8.0),
    "controller": (6.0, 8.0),
    "nats": (6.0, 8.0),
}
"""Longer than it takes to find out: 10 s for an engine, which its agent answers for; 3 s for a
worker."""


def processes_of(cluster: ClusterProcess, component: Component) -> list[psutil.Process]:
    """The running processes of one kind, in the order of their pids."""
    found = []
    for process in cluster.processes():
        with contextlib.suppress(psutil.Error):
            if _is(component, process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def roles(cluster: ClusterProcess) -> dict[str, psutil.Process]:
    """Every process that answers for something, by a name that survives its replacement:
    worker-1, controller-1, nats, engine of worker-1, ..."""
    named: dict[str, psutil.Process] = {}
    for component in COMPONENTS:
        for process in processes_of(cluster, component):
            with contextlib.suppress(psutil.Error):
                named[_role(component, process)] = process
    return named


def _is(component: Component, line: list[str]) -> bool:
    match component:
        case "engine":
            return "worker.engine" in line
        case "nats":  # not the wrapper that ends it with its parent
            return bool(line) and line[0].endswith("nats-server")
        case "worker" | "controller":
            return "--id" in line and line[line.index("--id") + 1].startswith(f"{component}-")


def _role(component: Component, process: psutil.Process) -> str:
    if component == "nats":
        return component
    if component == "engine":
        parent = process.parent()
        return f"engine of {_role('worker', parent)}" if parent else component
    line = process.cmdline()
    return line[line.index("--id") + 1]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one process.

    Attributes:
        share: of all tokens of the load that have come when it happens, 0 for right after
            the requests were sent.
        stop_s: how long a stopped process stays so; 0 for a killed one.
    """

    component: Component
    how: How
    victim: psutil.Process
    share: float
    stop_s: float

    def __str__(self) -> str:
        stopped = f" for {self.stop_s:.1f} s" if self.stop_s else ""
        return f"{self.how} {self.component}{stopped} at {self.share:.0%} (pid {self.victim.pid})"

    async def strike(self) -> None:
        """Do it; returns when a stopped process goes on, or was found out and killed."""
        if self.how == "kill":
            self.victim.send_signal(signal.SIGKILL)
            return
        with _stopped(self.victim):
            await asyncio.to_thread(psutil.wait_procs, [self.victim], self.stop_s)


def draw_fault(
    cluster: ClusterProcess, component: Component, how: How, number: int, chance: random.Random
) -> Fault:
    """A random fault; of those that stop, every other one (by `number`) stops for long."""
    span = _LONG_STOP_S[component] if number % 2 else _SHORT_STOP_S
    return Fault(
        component,
        how,
        victim=chance.choice(processes_of(cluster, component)),
        share=0.0 if chance.random() < 0.2 else chance.uniform(0.02, 0.7),
        stop_s=chance.uniform(*span) if how == "stop" else 0.0,
    )


class Pace:
    """Lets a test kill at most so many processes a minute: what ends more often, `cluster up`
    does not start again."""

    def __init__(self, kills_a_minute: int = 4) -> None:
        self._recent: deque[float] = deque(maxlen=kills_a_minute)

    async def wait(self, fault: Fault) -> None:
        """Return when this fault may happen. Engines are their agents' own affair."""
        if fault.how != "kill" or fault.component == "engine":
            return
        now = time.monotonic()
        if len(self._recent) == self._recent.maxlen:
            await asyncio.sleep(self._recent[0] + 61 - now)
        self._recent.append(time.monotonic())


@contextlib.contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
