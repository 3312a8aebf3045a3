"""The measured time of a prefill pass: a fixed part, and a part per token that rises with the
context."""

import math

_WEIGHT_OF_NEW = 0.5
_WEIGHT_OF_ERROR = 0.2
_ERRORS_COVERED = 2.0
_MAX_RATIO = 4.0
"""A pass longer than this multiple of its prediction is an outlier, and is capped."""
_BAND_TOKENS = 256


class PrefillCost:
    """Predicts the seconds of a pass from earlier passes.

    Attributes:
        floor_s: the time of a pass with hardly any tokens, which still reads the weights.
        relative_error: moving average of the relative error of predictions.
    """

    def __init__(self, floor_s: float, token_s: float) -> None:
        self.floor_s = floor_s
        self.relative_error = 0.0
        self._token_s = {0: token_s}  # by the band of the context, see `_band`

    @classmethod
    def from_measurements(cls, few: int, few_s: float, many: int, many_s: float) -> "PrefillCost":
        """Estimate from one pass of few and one of many tokens on an empty cache; both counts may
        be 1 for a tiny context."""
        min_token_s = (
            0.1 * many_s / many
        )  # if reading the weights dominates, both take equally long
        token_s = max((many_s - few_s) / max(1, many - few), min_token_s)
        return cls(max(0.0, few_s - few * token_s), token_s)

    @property
    def overhead_tokens(self) -> int:
        """The number of tokens that take as long as the fixed part: less padding than that is
        cheaper than another pass."""
        return int(self.floor_s / self._token_s[0])

    @property
    def tokens_per_s(self) -> float:
        """The speed on a short context, without the fixed part."""
        return 1 / self._token_s[0]

    def seconds(self, tokens: int, context: int = 0) -> float:
        """Predict the seconds of one pass of `tokens` tokens after `context` others."""
        return self.floor_s + tokens * self._rate(context)

    def tokens_in(self, seconds: float, context: int) -> int:
        """Return the tokens of a pass that rarely takes longer than `seconds`."""
        seconds /= 1 + _ERRORS_COVERED * self.relative_error
        return int((seconds - self.floor_s) / self._rate(context))

    def record_pass(self, tokens: int, context: int, seconds: float) -> None:
        """Update the estimate with the measured time of a pass."""
        predicted = self.seconds(tokens, context)
        seconds = min(seconds, _MAX_RATIO * predicted)
        error = min(1.0, abs(seconds / predicted - 1))
        self.relative_error += _WEIGHT_OF_ERROR * (error - self.relative_error)
        rate = max(seconds - self.floor_s, 0.2 * seconds) / tokens
        known = self._rate(context)
        self._token_s[_band(context)] = known + _WEIGHT_OF_NEW * (rate - known)

    def _rate(self, context: int) -> float:
        """Return the seconds per token, measured at the longest context that is at most as long."""
        band = _band(context)
        nearest = max((known for known in self._token_s if known <= band), default=0)
        return self._token_s[nearest]


def _band(context: int) -> int:
    """Return the band of a context; two bands per doubling."""
    return int(2 * math.log2(1 + context / _BAND_TOKENS))
