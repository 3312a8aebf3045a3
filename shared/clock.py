"""A clock for leases: unlike `time.monotonic`, it keeps counting while the machine sleeps."""

import sys
import time

_CLOCK = time.CLOCK_MONOTONIC if sys.platform == "darwin" else time.CLOCK_BOOTTIME


def boottime_s() -> float:
    """Return seconds since some start. On macOS CLOCK_MONOTONIC counts sleep, on Linux BOOTTIME."""
    return time.clock_gettime(_CLOCK)
