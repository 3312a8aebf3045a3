"""What a process takes of the machine's memory."""

import os
import subprocess
import sys

import psutil
import pytest

from worker.host.process_usage import footprint_bytes

_MB = 1_000_000


def test_memory_that_is_used_is_counted() -> None:
    # Of a fresh process: this one may have as much at hand from the tests before.
    program = (
        "print('ready', flush=True); input(); "
        f"held = bytearray(b'x') * {100 * _MB}; print(len(held), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        before = footprint_bytes([child.pid])
        print(file=child.stdin, flush=True)
        held = int(child.stdout.readline())
        assert footprint_bytes([child.pid]) - before == pytest.approx(held, rel=0.1)
        child.communicate("\n")


def test_several_count_together_and_dead_ones_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    both = footprint_bytes([os.getpid(), child.pid])
    assert both > footprint_bytes([os.getpid()])
    child.communicate()
    assert not psutil.pid_exists(child.pid)
    assert footprint_bytes([child.pid]) == 0
