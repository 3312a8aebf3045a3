"""What a process takes of the machine's memory."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from worker.footprint import footprint_bytes

_MB = 1_000_000


def test_memory_that_is_used_is_counted() -> None:
    before = footprint_bytes([os.getpid()])
    held = bytearray(b"x") * (100 * _MB)
    until = time.monotonic() + 10  # some kernels tell what was so a moment ago
    while footprint_bytes([os.getpid()]) == before and time.monotonic() < until:
        time.sleep(0.05)
    assert footprint_bytes([os.getpid()]) - before == pytest.approx(len(held), rel=0.1)


def test_several_count_together_and_dead_ones_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    both = footprint_bytes([os.getpid(), child.pid])
    assert both > footprint_bytes([os.getpid()])
    child.communicate()
    assert not psutil.pid_exists(child.pid)
    assert footprint_bytes([child.pid]) == 0
