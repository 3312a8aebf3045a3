"""How many rows of a model decode at once: as many as a latency target of the step allows.

An exponential moving average of the step's latency is held in a band around the target by
adding and taking away rows, a few at a time; far above the band half of them go at once. Three
rules keep it from swinging: nothing is judged before the last change has taken effect; more
rows are tried only while others wait, and after a try that failed only later, twice as late
each time; and where not even the fewest rows would reach the target, because the model itself
takes longer or the machine is busy, a small batch would cost throughput for little: there the
size goes, for a minute or longer, to where half of a step's time is that of its rows. Within the
band it grows only by what is known to fit, so that one noisy moment does not keep it small.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from shared.settings.tree import AdaptiveBatching
from worker.engine.row_cost import RowCost

Reason = Literal["room", "slow", "far too slow", "out of reach"]

_START = 8
_CUT = 0.5
_JUDGED_AT = 2 / 3
"""Whether a descent can reach the target is judged when so much of the rows is left."""
_FIRST_FLOOR_S = 60.0
_LONGEST_FLOOR_S = 600.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 120.0
_FEW, _FEW_STRETCH = 4, 1.2
_TRY_S = 5.0
"""Within the band rows are added at most so often."""
_KEPT_CHANGES = 16
_KEPT_JUDGEMENTS = 60


@dataclass(frozen=True, slots=True)
class Change:
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


@dataclass(frozen=True, slots=True)
class _Descent:
    """Where a way down began: at this limit, with so many rows, which may be fewer, and so slow."""

    limit: int
    rows: int
    latency_s: float


class AdaptiveBatchSize:
    """The limit on the rows of one model. Belongs to the engine thread.

    Args:
        least, most: the limit stays between them.
        start: where it begins; by default with a few, as the first burst would be slow for long.

    Attributes:
        limit: rows that may decode at once.
        latency_s: the average latency of a step, since the last change; 0 before the first.
        changes: the last ones, oldest first.
    """

    def __init__(
        self, settings: AdaptiveBatching, least: int, most: int, start: int = _START
    ) -> None:
        self._settings = settings
        self._least = least
        self._most = most
        self.limit = min(max(start, least), most)
        self.latency_s = 0.0
        self.changes: deque[Change] = deque(maxlen=_KEPT_CHANGES)
        self._rows = 0.0  # on average, since the last change
        self._steps = 0
        self._in_band: deque[bool] = deque(maxlen=_KEPT_JUDGEMENTS)
        self._tried_up = False
        self._pause_s = _FIRST_PAUSE_S
        self._no_more_until = 0.0
        self._row_cost = RowCost()
        self._descent: _Descent | None = None  # the present one
        self._floor, self._floor_until = least, 0.0
        self._floor_s = _FIRST_FLOOR_S

    @property
    def stability(self) -> float:
        """The share of the last judgements that found nothing to change, from 0 to 1."""
        return sum(self._in_band) / len(self._in_band) if self._in_band else 1.0

    def step_s(self, rows: int) -> float:
        """How long a step of so many rows takes, as far as can be said."""
        predicted_s = self._row_cost.predict(self.latency_s, max(1, round(self._rows)), rows)
        return self.latency_s if predicted_s is None else predicted_s

    def stepped(self, latency_s: float, rows: int, waiting: int, now: float) -> None:
        """Take in one step of so many rows, while others waited to join."""
        if rows > self.limit:
            return  # the last change has not taken effect
        alpha = self._settings.ema_alpha
        usual = self.latency_s or latency_s
        self.latency_s = usual + alpha * (latency_s - usual)
        usual_rows = self._rows or rows
        self._rows = usual_rows + alpha * (rows - usual_rows)
        self._row_cost.stepped(rows, latency_s)
        self._steps += 1
        if self._steps >= self._settings.adjustment_interval:
            self._steps = 0
            self._judge(round(self._rows), waiting, now)

    def _judge(self, rows: int, waiting: int, now: float) -> None:
        before = self.limit
        self._move(*self._wanted(rows, waiting, now), rows, now)
        self._in_band.append(self.limit == before)

    def _wanted(self, rows: int, waiting: int, now: float) -> tuple[int, Reason]:
        """The limit that is right now, and why; the present one where nothing is wrong."""
        settings = self._settings
        target_s, tolerance_s = settings.target_step_latency_ms / 1000, settings.tolerance_ms / 1000
        floor = self._floor if now < self._floor_until else self._least
        if self.latency_s > target_s + tolerance_s:
            if (knee := self._out_of_reach(rows, target_s + tolerance_s)) is not None:
                self._floor, self._floor_until = knee, now + self._floor_s
                self._floor_s = min(2 * self._floor_s, _LONGEST_FLOOR_S)
                return min(knee, self._most), "out of reach"
            if rows <= self._least and self._descent is None:
                return self._most, "out of reach"  # nothing is known of more rows
            if rows <= floor:
                return self.limit, "slow"  # fewer is not possible: no reason to keep others out
        else:
            self._floor_s = _FIRST_FLOOR_S
        if self.latency_s > settings.degradation_multiplier * target_s:
            return min(self.limit, max(floor, int(rows * _CUT))), "far too slow"
        if self.latency_s > self._stretched(target_s + tolerance_s, rows):
            fewer = max(floor, rows - settings.max_adjustment_step)
            return min(self.limit, fewer), "slow"
        if waiting and rows >= self.limit and now >= self._no_more_until:
            return min(self._most, self.limit + self._room(target_s, tolerance_s, now)), "room"
        return self.limit, "room"

    def _stretched(self, longest_s: float, rows: int) -> float:
        """The longest step that is accepted: somewhat more for a few rows where one row alone
        would hardly be faster, as with fewer of them the throughput is lost."""
        alone = self._row_cost.predict(1.0, max(1, rows), 1)
        cheap = alone is not None and alone * _FEW_STRETCH >= 1
        return _FEW_STRETCH * longest_s if cheap and rows <= _FEW else longest_s

    def _room(self, target_s: float, tolerance_s: float, now: float) -> int:
        """How many rows more to try: some below the band, within it only those that are known to
        stay below the target, and not at once after another change."""
        carefully = self._pause_s > _FIRST_PAUSE_S  # the last try went too far
        more = 1 if carefully else self._settings.max_adjustment_step
        if self.latency_s < target_s - tolerance_s:
            return more
        if self.changes and now - self.changes[-1].at < _TRY_S:
            return 0
        while more and not self._is_known_to_fit(self.limit + more, target_s):
            more -= 1
        return more

    def _is_known_to_fit(self, rows: int, target_s: float) -> bool:
        predicted_s = self._row_cost.predict(self.latency_s, self.limit, rows)
        return predicted_s is not None and predicted_s <= self._stretched(target_s, rows)

    def _out_of_reach(self, rows: int, wanted_s: float) -> int | None:
        """How many rows are right where the line through the begin of the present descent and
        this point says that not even the fewest rows are fast enough; None where they are, or
        the points lie too close together to say."""
        top = self._descent
        if top is None or rows < self.limit or rows > _JUDGED_AT * top.rows:
            return None
        row_s = max(0.0, (top.latency_s - self.latency_s) / (top.rows - rows))
        fixed_s = self.latency_s - row_s * rows
        if fixed_s + row_s * self._least <= wanted_s:
            return None
        if row_s * top.rows <= fixed_s:
            return top.limit
        return max(self._least, round(fixed_s / row_s))

    def _move(self, limit: int, reason: Reason, rows: int, now: float) -> None:
        if limit == self.limit:
            return
        change = Change(now, self.limit, limit, self.latency_s, reason)
        if limit < self.limit:
            self._descent = self._descent or _Descent(self.limit, rows, self.latency_s)
            if self._tried_up:
                self._no_more_until = now + self._pause_s
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        else:
            self._descent = None
            if self._tried_up:
                self._pause_s = _FIRST_PAUSE_S  # the last try went well
        self._tried_up = reason == "room"
        self.changes.append(change)
        self.limit = limit
        self.latency_s = self._rows = 0.0
