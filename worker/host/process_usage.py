"""What processes use of the machine: CPU time and memory."""

import ctypes
import functools
import sys
import time
from collections.abc import Iterable

import psutil

_MIN_INTERVAL_S = 0.5


class CpuMeter:
    """Measures between calls; meant to be called about once a second."""

    def __init__(self) -> None:
        self._samples: dict[int, tuple[float, float, float]] = {}  # pid: time, CPU time, cores

    def cores(self, pid: int | None) -> float:
        """Return the cores that a process kept busy since the previous call for it; 0 if the
        process is new or gone."""
        if pid is None:
            return 0.0
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            self._samples.pop(pid, None)
            return 0.0
        now, used_s = time.monotonic(), times.user + times.system
        at, before_s, cores = self._samples.get(pid, (now, used_s, 0.0))
        if now - at >= _MIN_INTERVAL_S:
            cores = round(max(0.0, used_s - before_s) / (now - at), 2)
        elif pid in self._samples:
            return cores
        self._samples[pid] = now, used_s, cores
        return cores


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
