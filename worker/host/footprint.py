"""The memory footprint of a process."""

import ctypes
import functools
import sys
from collections.abc import Iterable

import psutil


class _Usage(ctypes.Structure):
    """`struct rusage_info_v0` of macOS's <sys/resource.h>."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        *((name, ctypes.c_uint64) for name in (
            "user_time", "system_time", "idle_wakeups", "interrupt_wakeups", "pageins",
            "wired_size", "resident_size", "phys_footprint", "start_time", "exit_time",
        )),
    )  # fmt: skip


def footprint_bytes(pids: Iterable[int]) -> int:
    """Return the memory that processes take together; a dead process counts 0.

    On a Mac this is the physical footprint, as Activity Monitor shows it, since resident memory
    omits Metal's buffers. Elsewhere it is resident memory.
    """
    return sum(map(_physical if sys.platform == "darwin" else _resident, pids))


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _physical(pid: int) -> int:
    usage = _Usage()
    if _libproc().proc_pid_rusage(pid, 0, ctypes.byref(usage)) != 0:
        return _resident(pid)
    return int(usage.phys_footprint)


@functools.cache
def _libproc() -> ctypes.CDLL:
    return ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)
