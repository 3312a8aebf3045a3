"""The limit on the rows of a model that decode at once: raised while throughput still grows enough.

While sequences wait, the limit grows as long as one more row adds a hundredth to the tokens per
second, and as long as the gap between two tokens of one stream stays within what the objective
allows:

- `balanced`: the longer of the target and a multiple of the gap of a single row. Where a single
  row takes longer than the target, few rows would starve the waiting sequences and speed up
  nothing.
- `latency`: the target.
- `throughput`: any gap, as long as a hundredth more rows add a thousandth to the throughput.

The gap is a step and the prefill between two steps, which grows with the rows as a step does: each
answer brings one prompt. A line fitted to every step predicts the step time (`StepCost`). The limit
moves to where the line says: by a quarter, or to twice the rows where there is hardly a doubt. It
is adjusted again after the steps at the new limit were measured.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from shared.messages.model_status import TYPICAL_ANSWER_TOKENS, TYPICAL_ANSWER_WEIGHT
from shared.settings.worker import AdaptiveBatchingSettings
from worker.engine.step_cost import StepCost, StepCostLine

Reason = Literal["room", "slow"]

_START = 8
_MIN_GAIN = 0.01
"""The share that the last row must add to the tokens per second."""
_MIN_DOUBLING_GAIN = 0.1
"""Objective `throughput`: what doubling the rows must add, extrapolated from the last row."""
_NEGLIGIBLE_SLOWDOWN = 1.2
"""Objective `latency`: a gap up to this multiple of the gap at the minimum of rows is allowed."""
_GROWTH_SHARE = 1 / 4
"""The limit grows by this share at a time; it doubles if the gap would stay within the bounds even
at a pessimistic estimate of the cost of a row."""
_MAX_REDUCTION_SHARE = 1 / 2
_TOLERANCE = 0.1
_WEIGHT_OF_NEW = 0.005
_MAX_CHANGES = 16
_MAX_ADJUSTMENTS = 60


@dataclass(frozen=True, slots=True)
class BatchSizeChange:
    """One change of the limit; `latency_s` is the predicted step time that caused it."""

    at: float
    before: int
    after: int
    latency_s: float
    reason: Reason

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the fields of `BatchResize`."""
        return {
            "ago_s": round(now - self.at, 1),
            "before": self.before,
            "after": self.after,
            "latency_ms": round(1000 * self.latency_s, 1),
            "reason": self.reason,
        }


class TypicalRequest:
    """Moving averages over the requests of a model.

    Attributes:
        prompt_s: the prefill time of a prompt.
        answer_tokens: the length of an answer; starts with a guess.
    """

    def __init__(self) -> None:
        self.prompt_s = 0.0
        self.answer_tokens = TYPICAL_ANSWER_TOKENS
        self._count = 0

    def record(self, prompt_s: float, tokens: int) -> None:
        """Record a finished request: its prefill time and the tokens of its answer."""
        self._count += 1
        self.prompt_s += self._weight(self._count) * (prompt_s - self.prompt_s)
        difference = max(1, tokens) - self.answer_tokens
        self.answer_tokens += self._weight(self._count + TYPICAL_ANSWER_WEIGHT) * difference

    @staticmethod
    def _weight(count: int) -> float:
        return max(1 / count, _WEIGHT_OF_NEW)


class AdaptiveBatchSize:
    """The limit on the rows of one model. Belongs to the engine thread.

    Args:
        min_rows, max_rows: the bounds of the limit.
        start: the first limit; low by default, because a first burst at a high limit stays slow
            for long.

    Attributes:
        limit: rows that may decode at once.
        latency_s: the predicted step time of the current rows; 0 before the first step.
        cost: the measured cost of steps.
        typical_request: averages over the finished requests; the batch records them.
        changes: the last changes of the limit, oldest first.
    """

    def __init__(
        self, settings: AdaptiveBatchingSettings, min_rows: int, max_rows: int, start: int = _START
    ) -> None:
        self._settings = settings
        self._min_rows = min_rows
        self._max_rows = max_rows
        self.limit = min(max(start, min_rows), max_rows)
        self.latency_s = 0.0
        self.changes: deque[BatchSizeChange] = deque(maxlen=_MAX_CHANGES)
        self.cost = StepCost()
        self.typical_request = TypicalRequest()
        self._steps = 0
        self._full_steps = 0
        self._unchanged: deque[bool] = deque(maxlen=_MAX_ADJUSTMENTS)

    @property
    def stability(self) -> float:
        """The share of the last adjustments that left the limit unchanged, from 0 to 1."""
        return sum(self._unchanged) / len(self._unchanged) if self._unchanged else 1.0

    def step_s(self, rows: int) -> float:
        """Predict the seconds of a step of `rows` rows; 0 before the first step."""
        return self.cost.line.seconds(rows) if self.cost.is_known else 0.0

    def record_step(self, latency_s: float, rows: int, waiting: int, now: float) -> None:
        """Record a step of `rows` rows while `waiting` sequences waited to join; adjusts the limit
        after every `adjustment_interval` steps."""
        self.cost.record_step(rows, latency_s)
        self.latency_s = self.cost.line.seconds(rows)
        if rows > self.limit:
            return  # the last change has not taken effect
        self._steps += 1
        self._full_steps += rows == self.limit
        if self._steps >= self._settings.adjustment_interval:
            limit, reason = self._next_limit(rows, waiting)
            self._steps = 0
            self._unchanged.append(limit == self.limit)
            self._move(limit, reason, now)

    def _next_limit(self, rows: int, waiting: int) -> tuple[int, Reason]:
        """Return the limit to set, and why; the current one if nothing has to change."""
        gap = self._gap(self.cost.line)
        longest_s = self._longest_s(gap)
        if gap.seconds(rows) > longest_s + self._tolerance_s(longest_s):
            fewer = rows
            while fewer > self._min_rows and gap.seconds(fewer) > longest_s:
                fewer -= 1
            fewer = max(self._min_rows, fewer, int(rows * (1 - _MAX_REDUCTION_SHARE)))
            return min(self.limit, fewer), "slow"
        if self._full_steps < self._settings.adjustment_interval:
            return self.limit, "room"
        return (self._raised_limit() if waiting else self.limit), "room"

    def _raised_limit(self) -> int:
        moderate = self.limit + max(1, int(self.limit * _GROWTH_SHARE))
        largest = min(self._max_rows, moderate if self._keeps_target else 2 * self.limit)
        step = self.cost.optimistic(self.limit)
        gap, pessimistic_gap = self._gap(step), self._gap(self.cost.pessimistic(self.limit))
        longest_s = self._longest_s(gap if self._keeps_target else self._gap(self.cost.line))
        rows = self.limit
        while rows < largest and gap.seconds(rows + 1) <= longest_s:
            if step.gain(rows) < self._min_gain(rows):
                break
            if rows >= moderate and pessimistic_gap.seconds(rows + 1) > longest_s:
                break
            rows += 1
        return rows

    def _min_gain(self, rows: int) -> float:
        """The share by which one more row must raise the tokens per second."""
        match self._settings.objective:
            case "latency":
                return -math.inf
            case "balanced":
                return _MIN_GAIN
            case "throughput":
                return min(_MIN_GAIN, _MIN_DOUBLING_GAIN / rows)

    @property
    def _keeps_target(self) -> bool:
        return self._settings.objective == "latency"

    def _gap(self, step: StepCostLine) -> StepCostLine:
        """Return the gap between two tokens of a stream, given the cost of a step."""
        if self._keeps_target:
            return step
        prefill_s = self.typical_request.prompt_s / self.typical_request.answer_tokens
        return StepCostLine(step.fixed_s, step.each_s + prefill_s)

    @property
    def _target_s(self) -> float:
        return self._settings.target_step_latency_ms / 1000

    def _longest_s(self, gap: StepCostLine) -> float:
        """The longest gap that the objective allows."""
        match self._settings.objective:
            case "latency":
                return max(self._target_s, _NEGLIGIBLE_SLOWDOWN * gap.seconds(self._min_rows))
            case "balanced":
                return max(self._target_s, self._settings.slowdown_limit * gap.seconds(1))
            case "throughput":
                return math.inf

    def _tolerance_s(self, longest_s: float) -> float:
        if self._settings.objective == "latency":
            return self._settings.tolerance_ms / 1000
        return _TOLERANCE * longest_s

    def _move(self, limit: int, reason: Reason, now: float) -> None:
        if limit != self.limit:
            self.changes.append(BatchSizeChange(now, self.limit, limit, self.latency_s, reason))
            self.limit = limit
            self._full_steps = 0
