"""CPU usage of processes, in cores."""

import time

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
