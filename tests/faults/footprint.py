"""What processes hold: file descriptors, threads, memory, tasks. After a fault it is what it
was before."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

_SPARE_DESCRIPTORS = 2
_SPARE_THREADS = 2
_SPARE_MEMORY_BYTES = 96 * 1024 * 1024
_SETTLES_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process."""

    descriptors: int
    threads: int
    memory_bytes: int

    def grown_beyond(self, before: "Footprint") -> list[str]:
        """What is more than it was, in words; memory may grow by half and some."""
        return [
            f"{what} from {was} to {now}"
            for what, was, now, spare in (
                ("descriptors", before.descriptors, self.descriptors, _SPARE_DESCRIPTORS),
                ("threads", before.threads, self.threads, _SPARE_THREADS),
                (
                    "memory",
                    before.memory_bytes,
                    self.memory_bytes,
                    before.memory_bytes // 2 + _SPARE_MEMORY_BYTES,
                ),
            )
            if now > was + spare
        ]


def footprint(process: psutil.Process) -> Footprint:
    with process.oneshot():
        return Footprint(process.num_fds(), process.num_threads(), process.memory_info().rss)


def footprints(processes: Mapping[str, psutil.Process]) -> dict[str, Footprint]:
    """Of each, by its name; those that end meanwhile are left out."""
    found = {}
    for name, process in processes.items():
        with contextlib.suppress(psutil.Error):
            found[name] = footprint(process)
    return found


async def assert_back_to(
    before: Mapping[str, Footprint], tasks_before: int, measure: Callable[[], dict[str, Footprint]]
) -> None:
    """Poll until nothing is more than before; fails with what still is."""
    deadline = asyncio.get_running_loop().time() + _SETTLES_WITHIN_S
    while problems := _problems(before, tasks_before, measure()):
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError("grown: " + "; ".join(problems))
        await asyncio.sleep(0.2)


def _problems(
    before: Mapping[str, Footprint], tasks_before: int, now: Mapping[str, Footprint]
) -> list[str]:
    problems = [f"{name} is not there" for name in before if name not in now]
    problems += [
        f"{name}: {grown}"
        for name, what in before.items()
        if name in now
        for grown in now[name].grown_beyond(what)
    ]
    tasks = len(asyncio.all_tasks())
    if tasks > tasks_before:
        problems.append(f"asyncio tasks of the client from {tasks_before} to {tasks}")
    return problems
