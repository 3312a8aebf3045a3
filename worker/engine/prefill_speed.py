"""How long a prefill pass takes, as measured: a fixed part, and a part per token that rises
with the context."""

import math

_WEIGHT_OF_NEW = 0.5
_WEIGHT_OF_MISS = 0.2
_MISSES_COVERED = 2.0
_LONGEST_OF_PREDICTED = 4.0
"""A pass of more than so many times its prediction tells of the machine, not of the model."""
_BAND_TOKENS = 256


class PrefillSpeed:
    """Predicts the seconds of a pass from those before.

    Attributes:
        floor_s: of a pass with hardly any tokens: the weights are read all the same.
        miss: by which share predictions have been wrong lately.
    """

    def __init__(self, floor_s: float, token_s: float) -> None:
        self.floor_s = floor_s
        self.miss = 0.0
        self._token_s = {0: token_s}  # by the power of two of the context

    @classmethod
    def from_two(cls, few: int, few_s: float, many: int, many_s: float) -> "PrefillSpeed":
        """From passes of few and of many tokens on an empty cache; of one each, where that is all
        the context there is."""
        least = 0.1 * many_s / many  # where the weights are all that counts, both take as long
        token_s = max((many_s - few_s) / max(1, many - few), least)
        return cls(max(0.0, few_s - few * token_s), token_s)

    @property
    def floor_tokens(self) -> int:
        """Tokens that take as long as the fixed part: less padding than that is cheaper than
        another pass."""
        return int(self.floor_s / self._token_s[0])

    @property
    def tokens_per_s(self) -> float:
        """On a short context, without the fixed part."""
        return 1 / self._token_s[0]

    def seconds(self, tokens: int, context: int = 0) -> float:
        """Of one pass of so many tokens after `context` others."""
        return self.floor_s + tokens * self._rate(context)

    def tokens_in(self, seconds: float, context: int) -> int:
        """How many tokens one pass holds that takes hardly ever longer than so many seconds."""
        seconds /= 1 + _MISSES_COVERED * self.miss
        return int((seconds - self.floor_s) / self._rate(context))

    def measured(self, tokens: int, context: int, seconds: float) -> None:
        """A pass took so long."""
        predicted = self.seconds(tokens, context)
        seconds = min(seconds, _LONGEST_OF_PREDICTED * predicted)
        miss = min(1.0, abs(seconds / predicted - 1))
        self.miss += _WEIGHT_OF_MISS * (miss - self.miss)
        rate = max(seconds - self.floor_s, 0.2 * seconds) / tokens
        known = self._rate(context)
        self._token_s[_band(context)] = known + _WEIGHT_OF_NEW * (rate - known)

    def _rate(self, context: int) -> float:
        """Of the nearest context that was measured, rather a shorter one."""
        band = _band(context)
        nearest = max((known for known in self._token_s if known <= band), default=0)
        return self._token_s[nearest]


def _band(context: int) -> int:
    """Two for each doubling."""
    return int(2 * math.log2(1 + context / _BAND_TOKENS))
