"""A rate limit for sent bytes, shared by threads."""

import threading
import time


class BandwidthLimit:
    """A token bucket with a burst of 0.25 s. Thread-safe.

    Args:
        bytes_per_s: None for no limit.
    """

    _BURST_S = 0.25

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_for(self, count: int) -> None:
        """Block until this many bytes may be sent."""
        if self._bytes_per_s is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(self._free_at, now - self._BURST_S)
            self._free_at = begin + count / self._bytes_per_s
            delay_s = begin - now
        if delay_s > 0:
            time.sleep(delay_s)
