"""Sides of a comparison that take turns by the second, so that a shared host is as busy for one
as for the other: all processes but those of one side are stopped (SIGSTOP).

What a side is in the middle of when it is stopped takes as long as the others' turns: compare
medians of many short steps.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 2.0


def interleave(
    jobs: Mapping[str, Callable[[], T]], pids: Mapping[str, Sequence[int]]
) -> dict[str, T]:
    """Run all jobs, each in a thread that waits for the processes of its side.

    Args:
        pids: of each job, the processes that compute for it, and for it only.
    """
    # Also after an error all go on, before the threads are waited for.
    with ThreadPoolExecutor(len(jobs)) as threads, _all_going_on(pids):
        _signal(signal.SIGSTOP, *pids.values())
        running = {name: threads.submit(job) for name, job in jobs.items()}
        while left := [name for name, future in running.items() if not future.done()]:
            for name in left:
                _signal(signal.SIGCONT, pids[name])
                wait([running[name]], SLICE_S)
                _signal(signal.SIGSTOP, pids[name])
        return {name: future.result() for name, future in running.items()}


@contextlib.contextmanager
def _all_going_on(pids: Mapping[str, Sequence[int]]) -> Iterator[None]:
    try:
        yield
    finally:
        _signal(signal.SIGCONT, *pids.values())


def _signal(number: signal.Signals, *pids: Sequence[int]) -> None:
    for some in pids:
        for pid in some:
            os.kill(pid, number)
