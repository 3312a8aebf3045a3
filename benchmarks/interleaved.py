"""Sides of a comparison that take turns by the second, so that a shared host is as busy for one
as for the other: all processes but those of one side are stopped (SIGSTOP).

What a side is in the middle of when it is stopped takes as long as the others' turns: compare
medians of many short steps.
"""

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from benchmarks.children import send, stopped

T = TypeVar("T")

SLICE_S = 2.0


def interleave(
    jobs: Mapping[str, Callable[[], T]], pids: Mapping[str, Sequence[int]]
) -> dict[str, T]:
    """Run all jobs, each in a thread that waits for the processes of its side.

    Args:
        pids: of each job, the processes that compute for it, and for it only.

    Raises:
        BaseException: what the first job raised that failed. The others are left to themselves:
            they end with the processes that they wait for.
    """
    with stopped(*(pid for some in pids.values() for pid in some)):
        running = {name: _begun(job) for name, job in jobs.items()}
        results: dict[str, T] = {}
        while len(results) < len(jobs):
            for name in [name for name in jobs if name not in results]:
                send(signal.SIGCONT, pids[name])
                wait([running[name]], SLICE_S)
                send(signal.SIGSTOP, pids[name])
                if running[name].done():
                    results[name] = running[name].result()
        return results


def _begun(job: Callable[[], T]) -> "Future[T]":
    """A job in a thread for which the end of the program does not wait, unlike an executor's."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
