"""How many cores processes keep busy."""

import time

import psutil


class CpuUsage:
    """Compares with the last time it was asked; a report a second is how it is meant."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float, float]] = {}  # by process: when, CPU time, cores

    def cores(self, pid: int | None) -> float:
        """Of one process since it was last asked for; 0 where it is gone or new."""
        if pid is None:
            return 0.0
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            self._seen.pop(pid, None)
            return 0.0
        now, used_s = time.monotonic(), times.user + times.system
        at, before_s, cores = self._seen.get(pid, (now, used_s, 0.0))
        if now - at >= _LEAST_INTERVAL_S:
            cores = round(max(0.0, used_s - before_s) / (now - at), 2)
        elif pid in self._seen:
            return cores
        self._seen[pid] = now, used_s, cores
        return cores


_LEAST_INTERVAL_S = 0.5
