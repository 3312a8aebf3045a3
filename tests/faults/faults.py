"""What can happen to a cluster, each kind a function of its targets and of chance.

The promises hold while at least one worker and one controller are well, and messages of clients
pass through a server that stays: `injector` keeps to that.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil

from tests.faults.member import Kind, Member, descendants
from tests.nats_proxy import NatsProxy

_PAUSE_S = (0.3, 8.0)
_SERVER_PAUSE_S = (0.3, 3.0)
"""A client gives a connection up that says nothing for 5 s."""
_DELAY_S = (0.02, 0.15)
_FOR_S = (2.0, 6.0)
_ADOPTED_WITHIN_S = (2.0, 5.0)
_REFUSED_S = (0.0, 2.0)
_JUMP_S = 86_400.0
_LEAVES_WITHIN_S = 40.0
_ENDS_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Draw:
    """Chance.

    Attributes:
        pace: how long faults last, as a factor; where a cluster notices them sooner they may
            be shorter.
    """

    random: random.Random
    pace: float = 1.0

    def seconds(self, span: tuple[float, float]) -> float:
        """How long something lasts."""
        return self.pace * self.random.uniform(*span)


Do = Callable[[Sequence[Member], Draw], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of trouble.

    Attributes:
        targets: one member of each of these kinds.
        loses_messages: what is on its way to clients may be lost for ever.
        weight: how often it is drawn, beside the others.
    """

    name: str
    targets: tuple[Kind, ...]
    do: Do
    loses_messages: bool = False
    weight: int = 1


async def _kill(targets: Sequence[Member], _: Draw) -> None:
    for target in targets:
        target.send(signal.SIGKILL)


async def _kill_one_after_the_other(targets: Sequence[Member], draw: Draw) -> None:
    """The second when what the first one owned was taken over."""
    for target in targets[:-1]:
        target.send(signal.SIGKILL)
        await asyncio.sleep(draw.seconds(_ADOPTED_WITHIN_S))
    targets[-1].send(signal.SIGKILL)


async def _kill_engine(targets: Sequence[Member], draw: Draw) -> None:
    with contextlib.suppress(psutil.Error, IndexError):
        draw.random.choice(targets[0].engines).kill()


async def _stop_engine(targets: Sequence[Member], _: Draw) -> None:
    """Until its agent finds out and kills it."""
    for engine in targets[0].engines:
        with _stopped([engine]):
            await asyncio.to_thread(psutil.wait_procs, [engine], _ENDS_WITHIN_S)


async def _sleep(targets: Sequence[Member], draw: Draw) -> None:
    """As a Mac that sleeps, or hangs, with all that runs on it."""
    with _stopped([each for target in targets for each in descendants(target.process)]):
        await asyncio.sleep(draw.seconds(_PAUSE_S))


async def _stall(targets: Sequence[Member], draw: Draw) -> None:
    """A server takes in nothing and says nothing; connections stay."""
    with _stopped([target.process for target in targets]):
        await asyncio.sleep(draw.seconds(_SERVER_PAUSE_S))


@contextlib.contextmanager
def _stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    for each in processes:
        with contextlib.suppress(psutil.Error):
            each.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for each in processes:
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGCONT)


def _line(targets: Sequence[Member]) -> NatsProxy:
    """Of the only one."""
    (target,) = targets
    assert target.line is not None
    return target.line


async def _partition(targets: Sequence[Member], draw: Draw) -> None:
    """Nothing passes for a while, and then all of it."""
    line = _line(targets)
    line.stall()
    await asyncio.sleep(draw.seconds(_PAUSE_S))
    line.resume()


async def _cut(targets: Sequence[Member], draw: Draw) -> None:
    """The connection ends, and new ones are refused for a moment."""
    line = _line(targets)
    line.refusing = True
    await line.cut(draw.random.choice(["reset", "end"]))
    await asyncio.sleep(draw.seconds(_REFUSED_S))
    line.refusing = False


async def _slow(targets: Sequence[Member], draw: Draw) -> None:
    line = _line(targets)
    line.delay_s = draw.random.uniform(*_DELAY_S)
    await asyncio.sleep(draw.seconds(_FOR_S))
    line.delay_s = 0.0


async def _jump(targets: Sequence[Member], draw: Draw) -> None:
    """The clock on the wall is wrong by up to a day, for a while."""
    for target in targets:
        target.jump(draw.random.uniform(-_JUMP_S, _JUMP_S))
    await asyncio.sleep(draw.seconds(_FOR_S))
    for target in targets:
        target.jump(0.0)


async def _leave(targets: Sequence[Member], _: Draw) -> None:
    """Asked to end, as at an upgrade or when a Mac is shut down."""
    for target in targets:
        target.send(signal.SIGTERM)
    for target in targets:
        if not await target.ended(_LEAVES_WITHIN_S):
            raise AssertionError(f"{target.name} was asked to end and did not")


async def _lame_duck(targets: Sequence[Member], _: Draw) -> None:
    """A server sends its clients elsewhere, one by one, and ends."""
    targets[0].send(signal.SIGUSR2)
    if not await targets[0].ended(2 * _LEAVES_WITHIN_S):
        raise AssertionError(f"{targets[0].name} is a lame duck for ever")


LAME_DUCK = Fault("a server is a lame duck", ("nats",), _lame_duck, loses_messages=True)
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
    Fault("kill a controller and a worker", ("controller", "worker"), _kill, loses_messages=True),
    Fault(
        "kill a controller, then a worker", ("controller", "worker"), _kill_one_after_the_other,
        loses_messages=True,
    ),
    Fault("kill a server", ("nats",), _kill, loses_messages=True),
    Fault("a server stalls", ("nats",), _stall),
    LAME_DUCK,
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}
EXCEPT_LAME_DUCK = tuple(fault for fault in FAULTS if fault is not LAME_DUCK)
"""That takes at least 30 s, and needs other servers to send clients to."""
