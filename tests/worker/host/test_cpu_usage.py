"""How many cores a process keeps busy."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.worker.virtual_time import Clock
from worker.host.process_usage import CpuMeter

_CHILD = """
import sys, time

def tell():
    print(time.monotonic(), time.process_time(), flush=True)

tell()
if sys.stdin.readline():
    end_s = time.monotonic() + 0.7
    while time.monotonic() < end_s:
        pass
    tell()
    sys.stdin.readline()
"""
"""Busy for a moment when it is told to; it ends when nobody holds its input any more."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("worker.host.process_usage.time", SimpleNamespace(monotonic=clock))
    return clock


def _child() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _tell(child: subprocess.Popen[str]) -> tuple[float, float]:
    """When it last spoke, and what it had used by then."""
    assert child.stdout is not None
    at, used_s = child.stdout.readline().split()
    return float(at), float(used_s)


def _go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def _work() -> None:
    """For about a tenth of a second."""
    sum(range(5_000_000))


def test_a_busy_process_keeps_about_one_core_busy_and_one_that_waits_none() -> None:
    cpu = CpuMeter()
    with _child() as busy, _child() as waiting:
        _tell(waiting)
        began_at, before_s = _tell(busy)
        assert cpu.cores(busy.pid) == cpu.cores(waiting.pid) == 0
        _go_on(busy)
        ended_at, after_s = _tell(busy)
        cores = cpu.cores(busy.pid)
        idle = cpu.cores(waiting.pid)
    # As it counted itself: on a machine that is shared it may get less than a whole core.
    assert cores == pytest.approx((after_s - before_s) / (ended_at - began_at), abs=0.15)
    assert idle < 0.1


def test_asked_twice_quickly_it_says_the_same(clock: Clock) -> None:
    cpu, own = CpuMeter(), os.getpid()
    cpu.cores(own)
    clock.now += 1e-3
    assert cpu.cores(own) == 0
    _work()
    clock.now += 0.5
    first = cpu.cores(own)
    assert first > 0
    _work()
    clock.now += 0.4
    assert cpu.cores(own) == first


def test_only_what_was_used_since_it_was_last_asked_counts(clock: Clock) -> None:
    cpu, own = CpuMeter(), os.getpid()
    cpu.cores(own)
    _work()
    clock.now += 1
    assert cpu.cores(own) > 0
    clock.now += 1e6
    cpu.cores(own)
    clock.now += 1
    assert cpu.cores(own) < 0.05


def test_a_process_that_is_gone_or_was_never_there_keeps_none_busy(clock: Clock) -> None:
    cpu = CpuMeter()
    with _child() as child:
        _tell(child)
        assert cpu.cores(child.pid) == 0
    clock.now += 10
    assert cpu.cores(child.pid) == cpu.cores(None) == 0


def test_processes_are_counted_one_by_one(clock: Clock) -> None:
    cpu = CpuMeter()
    with _child() as waiting:
        _tell(waiting)
        cpu.cores(os.getpid())
        cpu.cores(waiting.pid)
        _work()
        clock.now += 1
        assert cpu.cores(waiting.pid) == 0
        assert cpu.cores(os.getpid()) > 0
