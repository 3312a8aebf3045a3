"""Controllers' leases in this process, each on a connection of its own, watched all the time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from controller.lease import Lease
from shared.bus import Bus
from shared.clock import awake_or_asleep
from shared.ids import ControllerId, new_boot_id
from tests.access.roles import connect_as

WAIT_S = 30


class Candidate:
    """One that may lead; `die` ends it without a word."""

    def __init__(self, bus: Bus, lease: Lease) -> None:
        self.bus = bus
        self.lease = lease
        self.running = asyncio.create_task(lease.run())

    async def wait(self, held: bool = True) -> None:
        await asyncio.wait_for(self.lease.wait_until(held), WAIT_S)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll: a lease tells no one of its inner changes."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                assert not self.running.done()
                await asyncio.sleep(0.005)

    async def renewed(self) -> None:
        """Return once it has been written again."""
        before = self.lease._sequence
        await self.until(lambda: self.lease._sequence > before)

    async def die(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


class Candidates:
    """All of a test; at no time do two of them hold the lease."""

    def __init__(self, ttl_s: int) -> None:
        self.ttl_s = ttl_s
        self.all: list[Candidate] = []
        self.looks = 0
        self.most_at_once = 0

    async def add(
        self, url: str, name: str, *, clock: Callable[[], float] = awake_or_asleep
    ) -> Candidate:
        bus = await connect_as("controller", name, url)
        lease = Lease(bus, ControllerId(name), new_boot_id(), self.ttl_s, clock)
        self.all.append(Candidate(bus, lease))
        return self.all[-1]

    @property
    def leaders(self) -> list[Candidate]:
        return [one for one in self.all if one.lease.holds]

    async def leader(self) -> Candidate:
        """The one that holds it, as soon as one does."""
        waiting = [asyncio.create_task(one.wait()) for one in self.all]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        (leader,) = self.leaders
        return leader

    def ends_at(self, candidate: Candidate) -> float:
        """When JetStream may let go of what it wrote last, at the earliest."""
        return candidate.lease._until + 0.1 * self.ttl_s

    async def watch(self) -> None:
        while True:
            self.looks += 1
            self.most_at_once = max(self.most_at_once, len(self.leaders))
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def candidates(ttl_s: int = 2) -> AsyncIterator[Candidates]:
    group = Candidates(ttl_s)
    watching = asyncio.create_task(group.watch())
    try:
        yield group
        assert group.most_at_once <= 1 and group.looks > 10
    finally:
        watching.cancel()
        for one in group.all:
            await one.die()
            await one.bus.close()
