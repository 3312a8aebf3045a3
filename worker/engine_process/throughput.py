"""Tokens that a worker generated recently, in total and by engine."""

from collections import Counter, deque
from collections.abc import Callable, Collection

_RATE_WINDOW_S = 5.0
_BALANCE_WINDOW_S = 60.0


class ThroughputMeter:
    """
    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, int, int]] = deque()  # time, engine, tokens

    def add(self, engine: int, tokens: int) -> None:
        self._recent.append((self._clock(), engine, tokens))
        self._forget_old()

    def tokens_per_s(self) -> float:
        """Return the rate over the last five seconds."""
        self._forget_old()
        since = self._clock() - _RATE_WINDOW_S
        return round(sum(count for at, _, count in self._recent if at >= since) / _RATE_WINDOW_S, 1)

    def balance(self, engines: Collection[int]) -> float:
        """Return how evenly these engines shared the tokens of the last minute: Jain's fairness
        index, 1 if all generated the same number, 1 / engines if one generated all of them."""
        self._forget_old()
        tokens: Counter[int] = Counter()
        for _, engine, count in self._recent:
            tokens[engine] += count
        shares = [tokens[engine] for engine in engines]
        if not any(shares):
            return 1.0
        return round(sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)), 3)

    def _forget_old(self) -> None:
        horizon = self._clock() - _BALANCE_WINDOW_S
        while self._recent and self._recent[0][0] < horizon:
            self._recent.popleft()
