"""However a benchmark ends, no process of it stays, be it running or stopped."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.benchmarks.beside_others import BESIDE_OTHERS
from tests.processes import wait_for, wait_until_gone

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 120
_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]
_INHERITED = [signal.SIGINT, signal.SIGHUP]


class Benchmark:
    """One that runs, one of whose sides is stopped."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        own = psutil.Process(process.pid)
        wait_for(lambda: _stopped(own), "a side is stopped", limit_s=_LIMIT_S)
        self.children = own.children(recursive=True)

    def end(self, number: signal.Signals) -> int:
        """Its exit status after that signal."""
        self.process.send_signal(number)
        return self.process.wait(_LIMIT_S)


@contextlib.contextmanager
def running(*command: str) -> Iterator[Benchmark]:
    with _nothing_ignored():
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=_ROOT,
            env={**os.environ, **BESIDE_OTHERS},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield Benchmark(process)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _nothing_ignored() -> Iterator[None]:
    """Also where pytest runs under `nohup`, or behind `&`: what is ignored there is inherited."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _INHERITED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopped(benchmark: psutil.Process) -> bool:
    states = []
    for child in benchmark.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            states.append(child.status())
    return psutil.STATUS_STOPPED in states


@pytest.mark.parametrize("number", _SIGNALS, ids=lambda number: number.name)
def test_no_process_stays_when_a_benchmark_is_ended(number: signal.Signals) -> None:
    with running("tests.benchmarks.endless") as benchmark:
        assert len(benchmark.children) == 5  # the reaper, and two of each side
        status = benchmark.end(number)
        assert wait_until_gone(benchmark.children) == []
        expected = -number if number in (signal.SIGINT, signal.SIGKILL) else 128 + number
        assert status == expected


@pytest.mark.long_form
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_what_ends_only_when_it_is_killed_is_killed(number: signal.Signals) -> None:
    with running("tests.benchmarks.endless", "--stubborn") as benchmark:
        benchmark.end(number)
        assert wait_until_gone(benchmark.children) == []


@pytest.mark.long_form
def test_no_process_stays_when_a_comparison_of_engines_is_ended(demo_folder: Path) -> None:
    with running("benchmarks.decode", "--rows", "2", "--repeats", "1") as benchmark:
        assert benchmark.end(signal.SIGTERM) == 128 + signal.SIGTERM
        assert wait_until_gone(benchmark.children) == []


def test_every_process_of_a_benchmark_is_started_where_its_end_is_seen_to() -> None:
    starts = re.compile(r"\b(Popen|call|check_call|check_output|run|create_subprocess_\w+)\(")
    for file in (_ROOT / "benchmarks").glob("*.py"):
        named = [line for line in file.read_text().splitlines() if "subprocess" in line]
        assert file.name == "children.py" or not any(map(starts.search, named)), file
