"""How much longer each row makes a step, from how steps change when rows come and go."""

import math

_FORGETTING = 1 / 100
_LEAST_SQUARES = 8


class RowCost:
    """The line `fixed + each * rows` through the steps before and after rows came or went.

    Least squares over the differences between one step and the next, the older the less: a
    machine that becomes slower meanwhile spoils one difference, which is cut to the length of a
    step, where a line through the steps themselves would suffer as long as it remembers. Only
    the line's shape is used, as such a machine is slower for any number of rows. A row counts
    for its cost and the standard error of that: what is not certain makes nothing look cheap.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._squares = self._products = self._latency2 = 0.0
        self._weight = self._rows = self._latency_s = 0.0  # of the middles
        self._line: tuple[float, float] | None = None

    def stepped(self, rows: int, latency_s: float) -> None:
        """Take in the next step."""
        last, self._last = self._last, (rows, latency_s)
        if last is None or last[0] == rows:
            return
        kept = 1 - _FORGETTING
        more = rows - last[0]
        longer_s = min(latency_s - last[1], last[1])  # and never less than -last[1]
        self._squares = kept * self._squares + more * more
        self._products = kept * self._products + more * longer_s
        self._latency2 = kept * self._latency2 + longer_s * longer_s
        self._weight = kept * self._weight + 1
        self._rows = kept * self._rows + (rows + last[0]) / 2
        self._latency_s = kept * self._latency_s + (latency_s + last[1]) / 2
        if self._squares >= _LEAST_SQUARES:
            slope_s = self._products / self._squares
            rest = max(0.0, self._latency2 - slope_s * self._products) / self._weight
            each_s = max(0.0, slope_s) + math.sqrt(rest / self._squares)
            fixed_s = (self._latency_s - each_s * self._rows) / self._weight
            self._line = max(0.0, fixed_s), each_s

    def predict(self, latency_s: float, rows: int, other: int) -> float | None:
        """How long a step of `other` rows takes where one of `rows` takes `latency_s`; None
        until that is known."""
        if self._line is None:
            return None
        fixed_s, each_s = self._line
        return latency_s * (fixed_s + each_s * other) / (fixed_s + each_s * rows)
