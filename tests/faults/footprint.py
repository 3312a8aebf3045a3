"""What a process holds: file descriptors, threads, memory."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

_SPARE_DESCRIPTORS = 2
_SPARE_THREADS = 2
_SPARE_MEMORY_BYTES = 96 * 1024 * 1024


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
