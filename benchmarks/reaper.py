"""Ends the processes that a benchmark left behind, where it was killed and could not.

    python -m benchmarks.reaper MARK

The benchmark holds the other end of our standard input: its end means that the benchmark has
ended. All processes that it started, and those that they started, have the mark in their
environment. Those that are stopped go on, so that all who watch a pipe of their own can end by
themselves; what is left then is killed.
"""

import contextlib
import os
import signal
import sys

import psutil

VARIABLE = "BENCHMARK_MARK"
_GRACE_S = 10.0
_KILLED_WITHIN_S = 1.0
_MAX_KILLS = 10
"""A process may start another one before it is killed."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1024):
        pass
    mark = sys.argv[1]
    left = _marked(mark)
    _signal(signal.SIGCONT, left)
    psutil.wait_procs(left, _GRACE_S)
    for _ in range(_MAX_KILLS):
        if not (left := _marked(mark)):
            return
        _signal(signal.SIGKILL, left)
        psutil.wait_procs(left, _KILLED_WITHIN_S)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # other users' processes, or it has ended
            if process.environ().get(VARIABLE) == mark:
                found.append(process)
    return found


def _signal(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


if __name__ == "__main__":
    main()
