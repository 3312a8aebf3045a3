"""Runs one of our commands in a process whose clock can jump, and which may have planted bugs:

    python -m tests.faults.child [--clock FILE] [--plant NAME ...] worker --id worker-1 ...

`FILE` holds one float64: how many seconds the clock of the wall is off.
"""

import argparse
import contextlib
import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.plants import PLANTS

_OFFSET = struct.Struct("d")


def set_clock(file: Path, seconds: float) -> None:
    """Make the clock of a running child wrong by so much."""
    with file.open("r+b") as opened:
        opened.write(_OFFSET.pack(seconds))


def new_clock(file: Path) -> None:
    """A clock that is right."""
    file.write_bytes(_OFFSET.pack(0.0))


def _follow(file: Path) -> None:
    """Have `time.time` and `time.time_ns` be wrong by what the file says."""
    with file.open("rb") as opened:
        offset = mmap.mmap(opened.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    right, right_ns = time.time, time.time_ns

    def wrong() -> float:
        return right() + float(_OFFSET.unpack_from(offset)[0])

    def wrong_ns() -> int:
        return right_ns() + int(_OFFSET.unpack_from(offset)[0] * 1e9)

    time.time, time.time_ns = wrong, wrong_ns


def _command(name: str) -> Callable[..., None]:
    if name == "controller":
        from controller.main import main
    else:
        from worker.main import main
    return main


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.faults.child")
    parser.add_argument("--clock", type=Path)
    parser.add_argument("--plant", choices=sorted(PLANTS), action="append", default=[])
    parser.add_argument("command", choices=["controller", "worker"])
    ours, theirs = parser.parse_known_args()
    if ours.clock is not None:
        _follow(ours.clock)
    with contextlib.ExitStack() as stack:
        for plant in (PLANTS[name] for name in ours.plant):
            if plant.where == ours.command:
                stack.enter_context(plant.planted())
        _command(ours.command)(theirs, prog_name=ours.command)


if __name__ == "__main__":
    main()
