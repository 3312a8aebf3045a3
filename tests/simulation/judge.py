"""Random scripts, one after another: which promises a cluster breaks, and the shortest script that
shows it."""

import collections
import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from unittest import mock

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.loop import SimulatedLoop
from tests.simulation.script import Step, random_script
from worker.memory.guard import MemoryGuard
from worker.memory.limits import MemoryReading

_MEMORY = MemoryReading(own_bytes=0, available_bytes=2**40, total_bytes=2**40, device_bytes=2**40)
_CHUNK = 50


@dataclass(frozen=True, slots=True)
class Broken:
    """A script, by its seed, and which promises were broken by it."""

    seed: str
    wrong: list[str]

    @property
    def kinds(self) -> set[str]:
        return {kind(line) for line in self.wrong}


def kind(line: str) -> str:
    """Of what is wrong: without what it is wrong with."""
    return line.partition(":")[0][:60]


def broken(steps: Sequence[Step]) -> list[str]:
    """Which promises a cluster breaks when this happens to it."""
    logging.disable(logging.CRITICAL)
    loop = SimulatedLoop()
    try:
        with mock.patch.object(MemoryGuard, "_read", lambda _: _MEMORY), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # who is killed awaits nothing more
            wrong = loop.run(_life(steps))
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    finally:
        logging.disable(logging.NOTSET)
    return wrong + [f"nobody caught {problem}" for problem in loop.problems]


async def _life(steps: Sequence[Step]) -> list[str]:
    cluster = SimulatedCluster()
    await cluster.start()
    for step in steps:
        await cluster.do(step)
    await cluster.settle()
    return await cluster.check()


def judge(seed: object, numbers: Sequence[int]) -> list[Broken]:
    """Those of the random scripts `seed`/number that break a promise."""
    gc.freeze()
    gc.disable()  # a tenth of the time; what a script leaves behind goes after some
    try:
        names = [f"{seed}/{number}" for number in numbers]
        return [Broken(name, wrong) for name in names if (wrong := broken(random_script(name)))]
    finally:
        gc.enable()
        gc.collect()


def judge_all(seed: object, scripts: int, jobs: int) -> Iterator[tuple[int, list[Broken]]]:
    """The same in so many processes: again and again how many scripts were tried since, and which
    of them break a promise."""
    chunks = [range(at, min(at + _CHUNK, scripts)) for at in range(0, scripts, _CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for chunk, found in zip(chunks, pool.map(judge, [seed] * len(chunks), chunks), strict=True):
            yield len(chunk), found


def shrunk(steps: Sequence[Step], breaks: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """As short a script as leaving out steps makes it, which breaks the same promise still (delta
    debugging: Zeller and Hildebrandt, 2002)."""
    left, size = list(steps), max(1, len(steps) // 2)
    while True:
        at, before = 0, len(left)
        while at < len(left):
            shorter = left[:at] + left[at + size :]
            if breaks(shorter):
                left = shorter
            else:
                at += size
        if size > 1:
            size //= 2
        elif len(left) == before:
            return left


def shortest(script: Broken) -> list[Step]:
    """The shortest script that breaks one of the promises that this one breaks."""
    return shrunk(
        random_script(script.seed),
        lambda steps: bool({kind(line) for line in broken(steps)} & script.kinds),
    )


def count_kinds(found: Sequence[Broken]) -> "collections.Counter[str]":
    """How many scripts broke each promise."""
    return collections.Counter(name for script in found for name in script.kinds)
