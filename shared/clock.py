"""A clock for promises to others: unlike `time.monotonic`, it goes on while a machine sleeps."""

import sys
import time

_CLOCK = time.CLOCK_MONOTONIC if sys.platform == "darwin" else time.CLOCK_BOOTTIME


def awake_or_asleep() -> float:
    """Seconds since some start; on macOS CLOCK_MONOTONIC counts sleep, on Linux BOOTTIME."""
    return time.clock_gettime(_CLOCK)
