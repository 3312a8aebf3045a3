"""The time for which a task runs on the event loop before others have their turn."""

import asyncio
import time


class TimeSlice:
    """
    Args:
        max_s: how long the task may run.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._began_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the task has run for longer than it may."""
        return time.monotonic() - self._began_at > self._max_s

    async def end(self) -> None:
        """Let timers and other tasks run, then begin the next slice."""
        await asyncio.sleep(0)
        self._began_at = time.monotonic()
