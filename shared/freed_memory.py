"""Returns freed memory to the system.

glibc keeps pages between blocks that are in use. After a few large messages a process has them for
good: an engine of 116 MiB has 133 after some minutes of the fuzzer of bytes, and 121 to 123 if they
are returned. Other C libraries do it by themselves.
"""

import asyncio
import ctypes
from collections.abc import Callable

INTERVAL_S = 60.0


def _find_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


_trim = _find_trim()


def return_freed_memory() -> None:
    """Takes some milliseconds, during which other threads run."""
    if _trim is not None:
        _trim(0)


async def return_freed_memory_regularly() -> None:
    """Return freed memory once a minute, until cancelled."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        await asyncio.to_thread(return_freed_memory)
