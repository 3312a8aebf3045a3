"""How many rows of a model decode at once: as many as still raise its throughput enough.

While others wait, a row more is let in as long as it adds a hundredth to the tokens a second, and
as long as the gap between two tokens of one stream stays within what the objective allows:
`balanced`, the longer of a target and some times the gap of one row alone (where one row takes
longer than the target, few rows would starve those who wait and make nothing faster); `latency`,
the target; `throughput`, any, and as long as a hundredth more rows add a thousandth. The gap is a
step and the prefill between two steps, which grows with the rows as a step does: each answer brings
one prompt. What a step takes is told by a line that every step corrects (`StepCost`), so the size
goes where the line says, by a quarter, or as many rows again where there is hardly a doubt, and
looks again when the steps there were measured.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from shared.messages.model_status import TYPICAL_ANSWER_TOKENS, TYPICAL_ANSWER_WEIGHT
from shared.settings.worker import AdaptiveBatchingSettings
from worker.engine.step_cost import LinearFit, StepCost

Reason = Literal["room", "slow"]

_START = 8
_WORTH = 0.01
"""What the last row shall add to the tokens a second."""
_WORTH_OF_ALL = 0.1
"""And for throughput, what as many rows again would add if each added what the last one does."""
_FREE = 1.2
"""A row that makes a step longer by less than this, compared to the fewest, costs nobody much."""
_TRIED = 1 / 4
"""So many rows more are tried at a time; and as many again as there are where they would keep to
the bounds even if each cost more than is likely."""
_MOST_TAKEN = 1 / 2
_TOLERANCE = 0.1
_WEIGHT_OF_NEW = 0.005
_KEPT_CHANGES = 16
_KEPT_JUDGEMENTS = 60


@dataclass(frozen=True, slots=True)
class BatchSizeChange:
    """One move of the limit; `latency_s` is the average that caused it."""

    at: float
    before: int
    after: int
    latency_s: float
    reason: Reason

    def as_json(self, now: float) -> dict[str, Any]:
        """As `BatchChange` has it."""
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
        prompt_s: what prefilling its prompt takes.
        answer_tokens: of its answer; a guess among the first.
    """

    def __init__(self) -> None:
        self.prompt_s = 0.0
        self.answer_tokens = TYPICAL_ANSWER_TOKENS
        self._count = 0

    def answered(self, prompt_s: float, tokens: int) -> None:
        """A request ended: its prompt took so long, its answer has so many tokens."""
        self._count += 1
        self.prompt_s += self._weight(self._count) * (prompt_s - self.prompt_s)
        more = max(1, tokens) - self.answer_tokens
        self.answer_tokens += self._weight(self._count + TYPICAL_ANSWER_WEIGHT) * more

    @staticmethod
    def _weight(count: int) -> float:
        return max(1 / count, _WEIGHT_OF_NEW)


class AdaptiveBatchSize:
    """The limit on the rows of one model. Belongs to the engine thread.

    Args:
        least, most: the limit stays between them.
        start: where it begins; by default with a few, as the first burst would be slow for long.

    Attributes:
        limit: rows that may decode at once.
        latency_s: what a step of the present rows takes; 0 before the first.
        cost: of steps, as measured.
        usual: what requests are like; whoever sees one end tells it.
        changes: the last ones, oldest first.
    """

    def __init__(
        self, settings: AdaptiveBatchingSettings, least: int, most: int, start: int = _START
    ) -> None:
        self._settings = settings
        self._least = least
        self._most = most
        self.limit = min(max(start, least), most)
        self.latency_s = 0.0
        self.changes: deque[BatchSizeChange] = deque(maxlen=_KEPT_CHANGES)
        self.cost = StepCost()
        self.usual = TypicalRequest()
        self._steps = 0
        self._full_steps = 0
        self._in_band: deque[bool] = deque(maxlen=_KEPT_JUDGEMENTS)

    @property
    def stability(self) -> float:
        """The share of the last judgements that found nothing to change, from 0 to 1."""
        return sum(self._in_band) / len(self._in_band) if self._in_band else 1.0

    def step_s(self, rows: int) -> float:
        """How long a step of so many rows takes, as far as can be said; 0 before the first."""
        return self.cost.line.seconds(rows) if self.cost.is_known else 0.0

    def stepped(self, latency_s: float, rows: int, waiting: int, now: float) -> None:
        """Take in one step of so many rows, while others waited to join."""
        self.cost.stepped(rows, latency_s)
        self.latency_s = self.cost.line.seconds(rows)
        if rows > self.limit:
            return  # the last change has not taken effect
        self._steps += 1
        self._full_steps += rows == self.limit
        if self._steps >= self._settings.adjustment_interval:
            limit, reason = self._wanted(rows, waiting)
            self._steps = 0
            self._in_band.append(limit == self.limit)
            self._move(limit, reason, now)

    def _wanted(self, rows: int, waiting: int) -> tuple[int, Reason]:
        """The limit that is right now, and why; the present one where nothing is wrong."""
        gap = self._gap(self.cost.line)
        longest_s = self._longest_s(gap)
        if gap.seconds(rows) > longest_s + self._tolerance_s(longest_s):
            fewer = rows
            while fewer > self._least and gap.seconds(fewer) > longest_s:
                fewer -= 1
            fewer = max(self._least, fewer, int(rows * (1 - _MOST_TAKEN)))
            return min(self.limit, fewer), "slow"
        if self._full_steps < self._settings.adjustment_interval:
            return self.limit, "room"
        return (self._more() if waiting else self.limit), "room"

    def _more(self) -> int:
        """How many rows may be tried next."""
        tried = self.limit + max(1, int(self.limit * _TRIED))
        most = min(self._most, tried if self._keeps_target else 2 * self.limit)
        step = self.cost.hopeful(self.limit)
        gap, doubted = self._gap(step), self._gap(self.cost.doubtful(self.limit))
        longest_s = self._longest_s(gap if self._keeps_target else self._gap(self.cost.line))
        rows = self.limit
        while rows < most and gap.seconds(rows + 1) <= longest_s:
            if step.gain(rows) < self._worth(rows):
                break
            if rows >= tried and doubted.seconds(rows + 1) > longest_s:
                break
            rows += 1
        return rows

    def _worth(self, rows: int) -> float:
        """What a row beside so many has to add to the tokens a second, as a share of them."""
        match self._settings.objective:
            case "latency":
                return -math.inf
            case "balanced":
                return _WORTH
            case "throughput":
                return min(_WORTH, _WORTH_OF_ALL / rows)

    @property
    def _keeps_target(self) -> bool:
        return self._settings.objective == "latency"

    def _gap(self, step: LinearFit) -> LinearFit:
        """Between two tokens of a stream, where a step takes this."""
        if self._keeps_target:
            return step
        prefill_s = self.usual.prompt_s / self.usual.answer_tokens
        return LinearFit(step.fixed_s, step.each_s + prefill_s)

    @property
    def _target_s(self) -> float:
        return self._settings.target_step_latency_ms / 1000

    def _longest_s(self, gap: LinearFit) -> float:
        """How long a gap may be."""
        match self._settings.objective:
            case "latency":
                return max(self._target_s, _FREE * gap.seconds(self._least))
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
