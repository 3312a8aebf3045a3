"""Forecast of each model's requests from past use. No I/O.

Two estimates of a model's requests per hour, of which the higher counts: the recent rate, in which
the weight of a request halves every hour; and the usual number at this time of day, an average over
days in which the newest day has the weight 1/3.
"""

import math
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NaiveDatetime, Strict

from shared.ids import ModelId

_HALF_LIFE = timedelta(hours=1)
_WEIGHT_OF_NEW_DAY = 1 / 3
_AHEAD = timedelta(minutes=15)
_HOURS = 24
_MAX_MISSED_DAYS = 30


Requests = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Hours = Annotated[list[Requests], Field(min_length=_HOURS, max_length=_HOURS)]


class _Use(BaseModel):
    """The use of one model.

    Attributes:
        recent: sum of the requests' weights at the time `at`.
        by_hour: requests by hour of an average day.
        today: requests by hour of the current day.
    """

    model_config = ConfigDict(strict=True)

    recent: Requests
    at: Annotated[NaiveDatetime, Strict(False)] | None
    by_hour: Hours
    today: Hours

    def decayed(self, now: datetime) -> float:
        if self.at is None:
            return 0.0
        age = max(now - self.at, timedelta())
        return float(self.recent * 0.5 ** (age / _HALF_LIFE))


class _History(BaseModel):
    """The history that is stored over restarts.

    Attributes:
        day: the current day as an ordinal of `date.toordinal`.
        days: number of days in the averages.
    """

    model_config = ConfigDict(strict=True)

    day: Annotated[int, Field(ge=1, le=date.max.toordinal())] | None
    days: Annotated[int, Field(ge=0, le=10**6)]
    models: dict[ModelId, _Use]


class UsageForecast:
    """Counts requests by model and time. All times are local time, which may jump."""

    def __init__(self, history: _History | None = None) -> None:
        self._history = history or _History(day=None, days=0, models={})

    def record(self, model: ModelId, now: datetime) -> None:
        """Record a request for a model."""
        self._begin_day(now)
        use = self._history.models.setdefault(model, _unused())
        use.recent, use.at = use.decayed(now) + 1, now
        use.today[now.hour] += 1

    def expected_per_h(self, model: ModelId, now: datetime) -> float:
        """Return the expected number of requests in the next hour."""
        self._begin_day(now)
        use = self._history.models.get(model)
        if use is None:
            return 0.0
        rate = use.decayed(now) * math.log(2) / (_HALF_LIFE / timedelta(hours=1))
        usual = use.by_hour[(now + _AHEAD).hour] if self._history.days else 0.0
        return max(rate, usual)

    def propose(
        self, models: Iterable[ModelId], now: datetime, *, least_per_h: float
    ) -> list[ModelId]:
        """Return the models with at least this expected rate, by descending rate."""
        expected = {model: self.expected_per_h(model, now) for model in models}
        worth = [model for model, rate in expected.items() if rate >= least_per_h]
        return sorted(worth, key=lambda model: -expected[model])

    def _begin_day(self, now: datetime) -> None:
        """Add past days to the averages, days without requests included."""
        history, today = self._history, now.toordinal()
        if history.day is None:
            history.day = today
        # If the clock went back, the day begins again.
        for _ in range(min(today - history.day, _MAX_MISSED_DAYS)):
            weight = _WEIGHT_OF_NEW_DAY if history.days else 1.0
            for use in history.models.values():
                use.by_hour = [
                    (1 - weight) * usual + weight * new
                    for usual, new in zip(use.by_hour, use.today, strict=True)
                ]
                use.today = [0.0] * _HOURS
            history.days += 1
        history.day = today

    # Storage over restarts.

    def to_json(self) -> bytes:
        return self._history.model_dump_json().encode()

    @classmethod
    def from_json(cls, history: bytes) -> "UsageForecast":
        """Load a history from `to_json`. Raises ValueError if it is invalid."""
        return cls(_History.model_validate_json(history))


def _unused() -> _Use:
    return _Use(recent=0.0, at=None, by_hour=[0.0] * _HOURS, today=[0.0] * _HOURS)
