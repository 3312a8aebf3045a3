"""How long dispatches are held so that they go to a worker together. Plain values; seconds of any
monotonic clock."""

import statistics
from collections import deque

from shared.messages.priorities import Priority
from shared.settings.controller import DispatchSettings

PAUSE_S = 0.02
"""Nothing but high priority goes to a worker for so long after it had no room."""

_LOW_HOLDS = 5 / 3
"""Low priority is held so much longer than medium, at most."""

_BATCHES = 100
_LEAST_TARGET = 2
_JUDGED_EVERY = 10


class BatchTarget:
    """How many dispatches for one worker are worth waiting for: fewer while they wait longer for
    company than the worker takes to answer, more while they wait less than half as long.

    Attributes:
        size: a message goes when it has so many.
    """

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self.size = self._most
        self._batches: deque[tuple[float, float]] = deque(maxlen=_BATCHES)
        self._judged_ago = 0

    def answered(self, waited_s: float, took_s: float) -> None:
        """A message was answered, so long after it was sent; its first dispatch had waited."""
        self._batches.append((waited_s, took_s))
        self._judged_ago += 1
        if self._judged_ago < _JUDGED_EVERY:
            return
        self._judged_ago = 0
        waited_s, took_s = (statistics.fmean(each) for each in zip(*self._batches, strict=True))
        if waited_s > took_s:
            self.size = max(min(_LEAST_TARGET, self._most), self.size - 1)
        elif waited_s < took_s / 2:
            self.size = min(self._most, self.size + 1)


class DispatchBatching:
    """When the dispatches of one lane go.

    The first one after some quiet goes at once, and so does high priority, with all that is held.
    Others go when nothing more came for a moment, when they are as many as is worth waiting for,
    or when one was held long enough.
    """

    def __init__(self, limits: DispatchSettings, target: BatchTarget) -> None:
        self._moment_s = limits.min_hold_ms / 1000
        self._longest_s = limits.max_hold_ms / 1000
        self._target = target
        self._came_at = float("-inf")
        self._held = 0
        self._due_at = 0.0
        self._latest_at = float("inf")

    def came(self, level: Priority, now: float) -> None:
        """One more is held."""
        quiet = not self._held and now - self._came_at >= self._longest_s
        self._held += 1
        self._came_at = now
        longest_s = self._longest_s * (_LOW_HOLDS if level == "low" else 1)
        at_once = quiet or level == "high" or self._held >= self._target.size
        self._latest_at = min(self._latest_at, now if at_once else now + longest_s)
        self._due_at = min(self._latest_at, now + self._moment_s)

    def due_at(self, paused_until: float) -> float:
        """When they go, unless more come."""
        return max(self._due_at, paused_until)

    def went(self) -> None:
        """None is held any more."""
        self._held, self._latest_at = 0, float("inf")
