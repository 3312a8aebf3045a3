"""The processes that a benchmark starts. None of them stays, however the benchmark ends: by itself,
with an error, by SIGINT, SIGTERM or SIGHUP, or by SIGKILL, after which `benchmarks.reaper` ends
them."""

import atexit
import contextlib
import functools
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Any

from benchmarks import reaper
from shared.service import PARENT_VARIABLE

_PATIENCE_S = 30.0


@contextlib.contextmanager
def started(
    command: Sequence[str], settings: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> Iterator["subprocess.Popen[Any]"]:
    """A process until the end of the context; we hold the other end of its standard input.

    Args:
        settings: environment variables, beside our own.
        options: of `subprocess.Popen`.
    """
    leave_nothing_behind()
    environment = {**os.environ, **settings, PARENT_VARIABLE: "1"}
    # In a group of its own, so that Ctrl-C reaches only us.
    options = {"stdin": subprocess.PIPE, "process_group": 0, **options}
    process = subprocess.Popen(command, env=environment, **options)
    try:
        yield process
    finally:
        end(process)


def end(process: "subprocess.Popen[Any]", patience_s: float = _PATIENCE_S) -> None:
    """Ask a process to end, which may be stopped, and wait until it has; kill it when it has not
    in time."""
    process.terminate()
    process.send_signal(signal.SIGCONT)  # while it is stopped, it does not hear SIGTERM
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Processes stand still (SIGSTOP) meanwhile; those that have ended are passed over."""
    try:
        send(signal.SIGSTOP, pids)
        yield
    finally:
        send(signal.SIGCONT, pids)


def send(number: signal.Signals, pids: Sequence[int]) -> None:
    """Send a signal to each process that has not ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@functools.cache
def leave_nothing_behind() -> None:
    """Have SIGTERM and SIGHUP unwind the program, as Ctrl-C does, and the reaper end what is left
    then. For all processes that are started from now on, whoever starts them."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _exit)
    mark = secrets.token_hex(8)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.reaper", mark], stdin=subprocess.PIPE, process_group=0
    )
    os.environ[reaper.VARIABLE] = mark
    atexit.register(process.communicate)  # which ends its input, and waits


def _exit(signal_number: int, _: FrameType | None) -> None:
    sys.exit(128 + signal_number)
