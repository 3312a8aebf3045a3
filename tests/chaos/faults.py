"""What can happen to a cluster, each kind as a function of its victims and of chance.

The promises hold while at least one worker and one controller are well, and messages of clients
pass through a server that stays: so at most `MOST_WORKERS` workers and one controller are in
trouble at a time, and a server only while nothing else is.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import psutil

from tests.chaos.checker import Strike
from tests.chaos.fleet import Fleet, Kind, Member, descendants
from tests.nats_proxy import NatsProxy

MOST_WORKERS = 2
_PAUSE_S = (0.3, 8.0)
_SLOW_S = (0.02, 0.15)
_SLOW_FOR_S = (2.0, 6.0)
_JUMP_S = 86_400.0
_LEAVES_WITHIN_S = 40.0
_ENDS_WITHIN_S = 20.0

Do = Callable[[Sequence[Member], random.Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of trouble.

    Attributes:
        victims: one member of each of these kinds.
        loses_messages: what is on its way to clients may be lost for ever.
        weight: how often it is drawn, beside the others.
    """

    name: str
    victims: tuple[Kind, ...]
    do: Do
    loses_messages: bool = False
    weight: int = 1


async def _kill(victims: Sequence[Member], _: random.Random) -> None:
    for victim in victims:
        victim.send(signal.SIGKILL)


async def _kill_engine(victims: Sequence[Member], chance: random.Random) -> None:
    with contextlib.suppress(psutil.Error, IndexError):
        chance.choice(victims[0].engines).kill()


async def _stop_engine(victims: Sequence[Member], _: random.Random) -> None:
    """Until its agent finds out and kills it."""
    for engine in victims[0].engines:
        with contextlib.suppress(psutil.Error):
            engine.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(psutil.wait_procs, [engine], _ENDS_WITHIN_S)
            engine.send_signal(signal.SIGCONT)


async def _sleep(victims: Sequence[Member], chance: random.Random) -> None:
    """As a Mac that sleeps, or hangs, with all that runs on it."""
    stopped = [each for victim in victims for each in descendants(victim.process)]
    for each in stopped:
        with contextlib.suppress(psutil.Error):
            each.send_signal(signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(*_PAUSE_S))
    for each in stopped:
        with contextlib.suppress(psutil.Error):
            each.send_signal(signal.SIGCONT)


def _line(victims: Sequence[Member]) -> NatsProxy:
    """Of the only one."""
    (victim,) = victims
    assert victim.line is not None
    return victim.line


async def _partition(victims: Sequence[Member], chance: random.Random) -> None:
    """Nothing passes for a while, and then all of it."""
    line = _line(victims)
    line.stall()
    await asyncio.sleep(chance.uniform(*_PAUSE_S))
    line.resume()


async def _cut(victims: Sequence[Member], chance: random.Random) -> None:
    """The connection ends, and new ones are refused for a moment."""
    line = _line(victims)
    line.refusing = True
    await line.cut(chance.choice(["reset", "end"]))
    await asyncio.sleep(chance.uniform(0.0, 2.0))
    line.refusing = False


async def _slow(victims: Sequence[Member], chance: random.Random) -> None:
    line = _line(victims)
    line.delay_s = chance.uniform(*_SLOW_S)
    await asyncio.sleep(chance.uniform(*_SLOW_FOR_S))
    line.delay_s = 0.0


async def _jump(victims: Sequence[Member], chance: random.Random) -> None:
    """The clock on the wall is wrong by up to a day, for a while."""
    for victim in victims:
        victim.jump(chance.uniform(-_JUMP_S, _JUMP_S))
    await asyncio.sleep(chance.uniform(*_SLOW_FOR_S))
    for victim in victims:
        victim.jump(0.0)


async def _leave(victims: Sequence[Member], _: random.Random) -> None:
    """Asked to end, as at an upgrade or when a Mac is shut down."""
    for victim in victims:
        victim.send(signal.SIGTERM)
    for victim in victims:
        if not await victim.ended(_LEAVES_WITHIN_S):
            raise AssertionError(f"{victim.name} was asked to end and did not")


async def _lame_duck(victims: Sequence[Member], _: random.Random) -> None:
    """A server sends its clients elsewhere, one by one, and ends."""
    victims[0].send(signal.SIGUSR2)
    if not await victims[0].ended(2 * _LEAVES_WITHIN_S):
        raise AssertionError(f"{victims[0].name} is a lame duck for ever")


FAULTS = (
    Fault("kill a worker", ("worker",), _kill, weight=3),
    Fault("kill an engine", ("worker",), _kill_engine, weight=3),
    Fault("stop an engine", ("worker",), _stop_engine),
    Fault("a worker sleeps", ("worker",), _sleep, weight=2),
    Fault("a worker is cut off", ("worker",), _partition, weight=2),
    Fault("a worker's connection ends", ("worker",), _cut, weight=2),
    Fault("a worker's line is slow", ("worker",), _slow),
    Fault("a worker's clock jumps", ("worker",), _jump),
    Fault("a worker leaves", ("worker",), _leave, weight=2),
    Fault("kill a controller", ("controller",), _kill, weight=2),
    Fault("a controller sleeps", ("controller",), _sleep),
    Fault("a controller is cut off", ("controller",), _partition),
    Fault("a controller's connection ends", ("controller",), _cut),
    Fault("a controller's line is slow", ("controller",), _slow),
    Fault("a controller's clock jumps", ("controller",), _jump),
    Fault("a controller leaves", ("controller",), _leave),
    Fault(
        "kill a controller and a worker", ("controller", "worker"), _kill, loses_messages=True
    ),
    Fault("kill a server", ("nats",), _kill, loses_messages=True),
    Fault("a server is a lame duck", ("nats",), _lame_duck, loses_messages=True),
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}


class Mischief:
    """Draws faults and has them happen, within what the promises hold for.

    Attributes:
        strikes: all of them, in the order in which they began.
    """

    def __init__(
        self, fleet: Fleet, chance: random.Random, faults: Sequence[Fault], *, well_within_s: float
    ) -> None:
        self._well_within_s = well_within_s
        self._fleet = fleet
        self._chance = chance
        self._faults = faults
        self._running: set[asyncio.Task[None]] = set()
        self.strikes: list[Strike] = []
        self.problems: list[str] = []

    def draw(self) -> tuple[Fault, list[Member]] | None:
        """A fault that may happen now, and to whom; None where nothing may."""
        weights = [fault.weight for fault in self._faults]
        for _ in range(20):
            (fault,) = self._chance.choices(self._faults, weights)
            victims = [self._victim(kind) for kind in fault.victims]
            if all(victims):
                return fault, [victim for victim in victims if victim is not None]
        return None

    def _victim(self, kind: Kind) -> Member | None:
        fleet = self._fleet
        if any(server.busy for server in fleet.servers):
            return None
        if kind == "nats":
            calm = not any(member.busy for member in fleet.members)
            return self._chance.choice(fleet.servers) if calm else None
        members = fleet.workers if kind == "worker" else fleet.controllers
        most = min(MOST_WORKERS, len(members) - 1) if kind == "worker" else len(members) - 1
        well = [member for member in members if not member.busy]
        return self._chance.choice(well) if len(members) - len(well) < most else None

    def start(self, fault: Fault, victims: Sequence[Member]) -> None:
        """Have it happen, beside whatever else does."""
        task = asyncio.create_task(self._strike(fault, victims))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self) -> None:
        """Return once all of it is over and its victims are well."""
        while self._running:
            await asyncio.wait(self._running)

    async def _strike(self, fault: Fault, victims: Sequence[Member]) -> None:
        for victim in victims:
            victim.busy = True
        names = tuple(victim.name for victim in victims)
        at, place = time.monotonic(), len(self.strikes)
        forever = Strike(fault.name, names, at, float("inf"), fault.loses_messages)
        self.strikes.append(forever)
        try:
            await fault.do(victims, self._chance)
            await self._until_well(victims)
        except AssertionError as problem:
            self.problems.append(f"{fault.name} ({', '.join(names)}): {problem}")
        now = time.monotonic()
        self.strikes[place] = Strike(fault.name, names, at, now, fault.loses_messages)
        for victim in victims:
            victim.busy = False

    async def _until_well(self, victims: Sequence[Member]) -> None:
        await asyncio.sleep(0.5)  # a supervisor sees a death no sooner
        if victims[0].kind == "nats":
            await self._fleet.until_whole(self._well_within_s)
        else:
            names = [victim.name for victim in victims]
            await self._fleet.until_well(names, self._well_within_s)
