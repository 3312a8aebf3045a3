"""A benchmark that is ended from outside ends the processes that it started."""

import signal
import sys
from types import FrameType


def end_on_sigterm() -> None:
    """Have SIGTERM unwind the program, as Ctrl-C does, in place of ending it at once."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(signal_number: int, _: FrameType | None) -> None:
    sys.exit(128 + signal_number)
