"""How long dispatches are held, so that several go to a worker in one message. Plain values;
seconds of any monotonic clock."""

import statistics
from collections import deque

from shared.messages.base import Priority
from shared.settings.controller import DispatchSettings

PAUSE_S = 0.02
"""After a worker rejected a dispatch for lack of capacity, only dispatches of high priority are
sent to it for this time."""

_LOW_PRIORITY_FACTOR = 5 / 3
"""Low priority is held at most this many times as long as medium priority."""

_SAMPLES = 100
_MIN_TARGET = 2
_ADJUSTED_EVERY = 10


class DispatchBatchTarget:
    """The number of dispatches for one worker that are worth waiting for.

    It is lowered while the hold is longer than the time the worker takes to answer, and raised
    while the hold is less than half of that time.

    Attributes:
        size: a message is sent when it has this many dispatches.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max(1, max_size)
        self.size = self._max_size
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._since_adjusted = 0

    def answered(self, held_s: float, round_trip_s: float) -> None:
        """Record that a message was answered `round_trip_s` after it was sent; its first dispatch
        had been held for `held_s`."""
        self._samples.append((held_s, round_trip_s))
        self._since_adjusted += 1
        if self._since_adjusted < _ADJUSTED_EVERY:
            return
        self._since_adjusted = 0
        held_s, round_trip_s = (statistics.fmean(each) for each in zip(*self._samples, strict=True))
        if held_s > round_trip_s:
            self.size = max(min(_MIN_TARGET, self._max_size), self.size - 1)
        elif held_s < round_trip_s / 2:
            self.size = min(self._max_size, self.size + 1)


class DispatchHoldTimer:
    """When the held dispatches of one lane are sent.

    The first dispatch after some quiet is sent at once; high priority, too, together with all that
    are held. Others are sent when no more came for a moment, when they are as many as the target,
    or when one was held for the maximum time.
    """

    def __init__(self, limits: DispatchSettings, target: DispatchBatchTarget) -> None:
        self._min_hold_s = limits.min_hold_ms / 1000
        self._max_hold_s = limits.max_hold_ms / 1000
        self._target = target
        self._added_at = float("-inf")
        self._held = 0
        self._due_at = 0.0
        self._latest_at = float("inf")

    def added(self, level: Priority, now: float) -> None:
        """One more dispatch is held."""
        quiet = not self._held and now - self._added_at >= self._max_hold_s
        self._held += 1
        self._added_at = now
        max_hold_s = self._max_hold_s * (_LOW_PRIORITY_FACTOR if level == "low" else 1)
        at_once = quiet or level == "high" or self._held >= self._target.size
        self._latest_at = min(self._latest_at, now if at_once else now + max_hold_s)
        self._due_at = min(self._latest_at, now + self._min_hold_s)

    def due_at(self, paused_until: float) -> float:
        """Return when the held dispatches are sent, unless more are added."""
        return max(self._due_at, paused_until)

    def sent(self) -> None:
        """All held dispatches were sent."""
        self._held, self._latest_at = 0, float("inf")
