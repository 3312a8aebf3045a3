"""The cost of a decode step as a line over the number of rows, updated by every step.

A Kalman filter (Kalman 1960; see Simon, Optimal State Estimation, chapter 5) whose state is the
two parts of `fixed + each * rows`. The process noise determines how a slow step is interpreted: a
busy machine or longer sequences slow down steps of any size, so the scale of the state drifts with
a hundred times the variance of its shape. Thus a batch of constant size, which has no information
on the cost of a row, does not spoil what was learnt while the size changed. One long pause has
little effect: residuals are capped at three standard deviations (Huber's rule).
"""

import math
from dataclasses import dataclass

_GUESSED_FIXED = 0.5
"""The share of the first step assumed to be fixed; the first steps of another size correct it."""
_GUESSED_DEVIATION = 0.5
_SCALE_DRIFT = 0.02**2
_SHAPE_DRIFT = 0.002**2
"""Variances per step, relative to the step."""
_MAX_UNCERTAINTY = 0.1
"""Limit of the uncertainty of the rows' share of a step while the number of rows never changes."""
_FIRST_NOISE, _MIN_NOISE = 0.1**2, 0.01**2
_NOISE_WEIGHT = 0.02
_MAX_DEVIATIONS = 3.0
_SHORTEST_S = 1e-6


@dataclass(frozen=True, slots=True)
class StepCostLine:
    """Seconds of a step, `fixed_s + each_s * rows`."""

    fixed_s: float
    each_s: float

    def seconds(self, rows: int) -> float:
        """Return the seconds of a step of `rows` rows; always above 0."""
        return max(_SHORTEST_S, self.fixed_s + self.each_s * rows)

    def gain(self, rows: int) -> float:
        """Return the share by which one more row would raise the tokens per second."""
        return (rows + 1) / rows * self.seconds(rows) / self.seconds(rows + 1) - 1


class StepCost:
    """The line of one model on one device. Unknown until the first step."""

    def __init__(self) -> None:
        self._fixed_s = self._each_s = 0.0
        self._fixed_var = self._cov = self._each_var = 0.0
        self._noise = _FIRST_NOISE

    @property
    def is_known(self) -> bool:
        """Whether there was a step."""
        return self._fixed_var > 0

    @property
    def line(self) -> StepCostLine:
        """The most likely line."""
        return StepCostLine(self._fixed_s, self._each_s)

    def optimistic(self, rows: int) -> StepCostLine:
        """Return the line with the most likely cost of a step of `rows` rows, in which each row
        costs one standard deviation less than is most likely."""
        return self._rotated(rows, -1)

    def pessimistic(self, rows: int) -> StepCostLine:
        """Return the same line with each row one standard deviation more expensive."""
        return self._rotated(rows, 1)

    def _rotated(self, rows: int, deviations: float) -> StepCostLine:
        difference_s = deviations * math.sqrt(max(0.0, self._each_var))
        return StepCostLine(self._fixed_s - difference_s * rows, self._each_s + difference_s)

    def record_step(self, rows: int, seconds: float) -> None:
        """Update the line with a measured step."""
        if not self.is_known:
            self._guess(rows, seconds)
            return
        self._drift(rows)
        level = self.line.seconds(rows)
        toward_fixed = self._fixed_var + self._cov * rows
        toward_each = self._cov + self._each_var * rows
        variance = toward_fixed + toward_each * rows + self._noise * level**2
        limit = _MAX_DEVIATIONS * math.sqrt(variance)
        residual = min(max(seconds - level, -limit), limit)
        self._fixed_s += toward_fixed / variance * residual
        self._each_s += toward_each / variance * residual
        self._fixed_var -= toward_fixed**2 / variance
        self._cov -= toward_fixed * toward_each / variance
        self._each_var -= toward_each**2 / variance
        observed = min(((seconds - level) / level) ** 2, _MAX_DEVIATIONS**2 * self._noise)
        self._noise = max(_MIN_NOISE, self._noise + _NOISE_WEIGHT * (observed - self._noise))

    def _guess(self, rows: int, seconds: float) -> None:
        """Initialise from the first step: the sum of both parts is more certain than each part."""
        self._fixed_s = _GUESSED_FIXED * seconds
        self._each_s = (1 - _GUESSED_FIXED) * seconds / rows
        variance = (_GUESSED_DEVIATION * seconds) ** 2
        self._fixed_var, self._each_var = variance, variance / rows**2
        self._cov = -0.9 * variance / rows

    def _drift(self, rows: int) -> None:
        level = self.line.seconds(rows)
        is_uncertain = self._each_var * rows**2 > (_MAX_UNCERTAINTY * level) ** 2
        shape = 0.0 if is_uncertain else _SHAPE_DRIFT * level**2
        self._fixed_var += _SCALE_DRIFT * self._fixed_s**2 + shape
        self._cov += _SCALE_DRIFT * self._fixed_s * self._each_s
        self._each_var += _SCALE_DRIFT * self._each_s**2 + shape / rows**2
