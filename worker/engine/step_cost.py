"""How long a decode step of so many rows takes: a line that every step corrects.

A Kalman filter (Kalman 1960; see Simon, Optimal State Estimation, chapter 5) whose state are the
two parts of `fixed + each * rows`. What it expects to change decides how it reads a step that took
longer than it should: a machine that others slow down, or longer texts, make any number of rows
slower, so the state drifts along itself a hundred times as fast (as variances go) as its shape
changes. So a steady batch of always the same size, which tells nothing of a row's cost, does not
spoil what was learnt while rows came and went; and one long pause moves it by little, as what a
step differs from the line counts for three standard deviations at most (Huber's rule).
"""

import math
from dataclasses import dataclass

_GUESSED_FIXED = 0.5
"""The share of the first step that is taken for its fixed part; the first steps of another size
correct it."""
_GUESSED_DEVIATION = 0.5
_SCALE_DRIFT = 0.02**2
_SHAPE_DRIFT = 0.002**2
"""Variances a step, relative to the step."""
_MOST_DOUBT = 0.1
"""How far the share of rows in a step is doubted while their number never changes."""
_FIRST_NOISE, _LEAST_NOISE = 0.1**2, 0.01**2
_NOISE_WEIGHT = 0.02
_MOST_DEVIATIONS = 3.0
_SHORTEST_S = 1e-6


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Seconds of a step, `fixed_s + each_s * rows`."""

    fixed_s: float
    each_s: float

    def seconds(self, rows: int) -> float:
        """How long a step of so many rows takes; always above 0."""
        return max(_SHORTEST_S, self.fixed_s + self.each_s * rows)

    def gain(self, rows: int) -> float:
        """By what share the tokens a second would grow if there were one row more."""
        return (rows + 1) / rows * self.seconds(rows) / self.seconds(rows + 1) - 1


class StepCost:
    """The line of one model on one device. Empty until the first step."""

    def __init__(self) -> None:
        self._fixed_s = self._each_s = 0.0
        self._fixed_var = self._cov = self._each_var = 0.0
        self._noise = _FIRST_NOISE

    @property
    def is_known(self) -> bool:
        """Whether there was a step."""
        return self._fixed_var > 0

    @property
    def line(self) -> LinearFit:
        """What is most likely."""
        return LinearFit(self._fixed_s, self._each_s)

    def hopeful(self, rows: int) -> LinearFit:
        """The line on which a step of so many rows takes what is most likely, and each row costs
        one standard deviation less than that."""
        return self._turned(rows, -1)

    def doubtful(self, rows: int) -> LinearFit:
        """Likewise, where each row costs one standard deviation more."""
        return self._turned(rows, 1)

    def _turned(self, rows: int, deviations: float) -> LinearFit:
        dearer_s = deviations * math.sqrt(max(0.0, self._each_var))
        return LinearFit(self._fixed_s - dearer_s * rows, self._each_s + dearer_s)

    def stepped(self, rows: int, seconds: float) -> None:
        """Take in a step of so many rows."""
        if not self.is_known:
            self._guess(rows, seconds)
            return
        self._drift(rows)
        level = self.line.seconds(rows)
        toward_fixed = self._fixed_var + self._cov * rows
        toward_each = self._cov + self._each_var * rows
        variance = toward_fixed + toward_each * rows + self._noise * level**2
        most = _MOST_DEVIATIONS * math.sqrt(variance)
        surprise = min(max(seconds - level, -most), most)
        self._fixed_s += toward_fixed / variance * surprise
        self._each_s += toward_each / variance * surprise
        self._fixed_var -= toward_fixed**2 / variance
        self._cov -= toward_fixed * toward_each / variance
        self._each_var -= toward_each**2 / variance
        seen = min(((seconds - level) / level) ** 2, _MOST_DEVIATIONS**2 * self._noise)
        self._noise = max(_LEAST_NOISE, self._noise + _NOISE_WEIGHT * (seen - self._noise))

    def _guess(self, rows: int, seconds: float) -> None:
        """Most of the first step is its fixed part, with doubt: the sum is far surer than how it
        is divided."""
        self._fixed_s = _GUESSED_FIXED * seconds
        self._each_s = (1 - _GUESSED_FIXED) * seconds / rows
        doubt = (_GUESSED_DEVIATION * seconds) ** 2
        self._fixed_var, self._each_var = doubt, doubt / rows**2
        self._cov = -0.9 * doubt / rows

    def _drift(self, rows: int) -> None:
        level = self.line.seconds(rows)
        is_open = self._each_var * rows**2 > (_MOST_DOUBT * level) ** 2
        shape = 0.0 if is_open else _SHAPE_DRIFT * level**2
        self._fixed_var += _SCALE_DRIFT * self._fixed_s**2 + shape
        self._cov += _SCALE_DRIFT * self._fixed_s * self._each_s
        self._each_var += _SCALE_DRIFT * self._each_s**2 + shape / rows**2
