"""How much longer each row makes a step, from how steps change when rows come and go."""

_FORGETTING = 1 / 100
_LEAST_SQUARES = 8
_OUTLIER = 1.0


class RowCost:
    """Least squares over the differences between one step and the next, the older the less.

    A machine that becomes slower or faster meanwhile spoils one difference, which is cut to the
    length of a step; a line through the steps themselves would suffer as long as it remembers.

    Attributes:
        seconds: what one row adds to a step; None until it is known. It stays while rows neither
            come nor go.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._last: tuple[int, float] | None = None
        self._squares = self._products = 0.0

    def stepped(self, rows: int, latency_s: float) -> None:
        """Take in the next step."""
        last, self._last = self._last, (rows, latency_s)
        if last is None or last[0] == rows:
            return
        more, most_s = rows - last[0], _OUTLIER * last[1]
        longer_s = min(max(latency_s - last[1], -most_s), most_s)
        self._squares = (1 - _FORGETTING) * self._squares + more * more
        self._products = (1 - _FORGETTING) * self._products + more * longer_s
        if self._squares >= _LEAST_SQUARES and self._products > 0:
            self.seconds = self._products / self._squares
