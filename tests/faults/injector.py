"""Which fault happens next and to whom, within what the promises hold for: at most `MOST_WORKERS`
workers and one controller are in trouble at a time, and a server only while nobody else is."""

import asyncio
import time
from collections.abc import Sequence

from tests.faults.evidence import Injection
from tests.faults.faults import Draw, Fault
from tests.faults.fleet import Fleet
from tests.faults.member import Kind, Member

MOST_WORKERS = 2
_NOTICED_AFTER_S = 0.5
"""A supervisor sees a death no sooner."""


class Injector:
    """Draws faults and has them happen.

    Args:
        once: each fault happens once, and then no more; else any of them for ever.
        well_within_s: in which the targets of a fault are well again.

    Attributes:
        injections: all of them, in the order in which they began.
        problems: what did not get well in time, in words.
    """

    def __init__(
        self,
        fleet: Fleet,
        draw: Draw,
        faults: Sequence[Fault],
        *,
        once: bool,
        well_within_s: float,
    ) -> None:
        self._fleet = fleet
        self._draw = draw
        self._faults = list(faults)
        self._once = once
        self._well_within_s = well_within_s
        self._running: set[asyncio.Task[None]] = set()
        self.injections: list[Injection] = []
        self.problems: list[str] = []

    @property
    def exhausted(self) -> bool:
        """Whether every fault has happened that was to happen once."""
        return not self._faults

    def inject_one(self) -> Injection | None:
        """Have a fault begin that may happen now; None where nothing may."""
        for _ in range(20):
            (fault,) = self._draw.random.choices(self._faults, [f.weight for f in self._faults])
            targets = [self._target(kind) for kind in fault.targets]
            if all(targets):
                if self._once:
                    self._faults.remove(fault)
                return self._start(fault, [target for target in targets if target is not None])
        return None

    async def finish(self) -> None:
        """Return once all of it is over and its targets are well."""
        while self._running:
            await asyncio.wait(self._running)

    def _target(self, kind: Kind) -> Member | None:
        fleet = self._fleet
        if any(server.busy for server in fleet.servers):
            return None
        if kind == "nats":
            calm = not any(member.busy for member in fleet.members)
            return self._draw.random.choice(fleet.servers) if calm else None
        members = fleet.workers if kind == "worker" else fleet.controllers
        most = min(MOST_WORKERS, len(members) - 1) if kind == "worker" else len(members) - 1
        well = [member for member in members if not member.busy]
        return self._draw.random.choice(well) if len(members) - len(well) < most else None

    def _start(self, fault: Fault, targets: Sequence[Member]) -> Injection:
        for target in targets:
            target.busy = True
        names = tuple(target.name for target in targets)
        begun = Injection(fault.name, names, time.monotonic(), float("inf"), fault.loses_messages)
        self.injections.append(begun)
        task = asyncio.create_task(self._run(fault, targets, begun, len(self.injections) - 1))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return begun

    async def _run(
        self, fault: Fault, targets: Sequence[Member], begun: Injection, place: int
    ) -> None:
        try:
            await fault.do(targets, self._draw)
            await self._until_well(targets)
        except AssertionError as problem:
            self.problems.append(f"{begun.kind} ({', '.join(begun.targets)}): {problem}")
        self.injections[place] = Injection(
            begun.kind, begun.targets, begun.at, time.monotonic(), begun.loses_messages
        )
        for target in targets:
            target.busy = False

    async def _until_well(self, targets: Sequence[Member]) -> None:
        await asyncio.sleep(_NOTICED_AFTER_S)
        if targets[0].kind == "nats":
            await self._fleet.until_whole(self._well_within_s)
        else:
            names = [target.name for target in targets]
            await self._fleet.until_well(names, self._well_within_s)
