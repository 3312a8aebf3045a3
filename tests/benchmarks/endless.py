"""A benchmark that does not end by itself, for tests of how it can be ended: two sides that take
turns, each a process and below it one that computes, as an engine does.

    python -m tests.benchmarks.endless [--stubborn]
"""

import argparse
import contextlib
import subprocess
import sys
import threading

from benchmarks import interleaved
from benchmarks.children import started

_ENGINE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.read()  # until the process above has ended
"""
_STUBBORN = _ENGINE + "time.sleep(600)"
_WORKER = """
import subprocess, sys
engine = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(engine.pid, flush=True)
sys.stdin.read()  # until the benchmark has ended
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stubborn", action="store_true", help="end only when killed")
    engine = _STUBBORN if parser.parse_args().stubborn else _ENGINE
    interleaved.SLICE_S = 0.1
    pids = {}
    with contextlib.ExitStack() as stack:
        for side in ("one", "other"):
            command = [sys.executable, "-c", _WORKER, engine]
            worker = stack.enter_context(started(command, stdout=subprocess.PIPE, text=True))
            assert worker.stdout is not None
            pids[side] = [int(worker.stdout.readline())]
        interleaved.interleave(dict.fromkeys(pids, threading.Event().wait), pids)


if __name__ == "__main__":
    main()
