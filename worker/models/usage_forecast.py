"""What use so far says will be asked for next. Decides only.

Two estimates of a model's requests per hour, of which the higher counts: the recent rate, in
which a request weighs half after an hour; and what was asked at this time of day, an average over
days in which the newest weighs a third.
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
_MOST_DAYS_AWAY = 30


Requests = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Hours = Annotated[list[Requests], Field(min_length=_HOURS, max_length=_HOURS)]


class _Use(BaseModel):
    """Of one model.

    Attributes:
        recent: requests, each by its weight as of `at`.
        by_hour: requests on an average day.
        today: requests of the day that is not over.
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
    """What is kept over a restart.

    Attributes:
        day: the present one, counted as `date.toordinal` does.
        days: that are in the averages.
    """

    model_config = ConfigDict(strict=True)

    day: Annotated[int, Field(ge=1, le=date.max.toordinal())] | None
    days: Annotated[int, Field(ge=0, le=10**6)]
    models: dict[ModelId, _Use]


class UsageForecast:
    """Counts requests by model and time. All times are local and may jump."""

    def __init__(self, history: _History | None = None) -> None:
        self._history = history or _History(day=None, days=0, models={})

    def used(self, model: ModelId, now: datetime) -> None:
        """A request came for a model."""
        self._begin_day(now)
        use = self._history.models.setdefault(model, _unused())
        use.recent, use.at = use.decayed(now) + 1, now
        use.today[now.hour] += 1

    def expected_per_h(self, model: ModelId, now: datetime) -> float:
        """Requests to expect in the next hour."""
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
        """Those of the models that are worth being warm, the most used first."""
        expected = {model: self.expected_per_h(model, now) for model in models}
        worth = [model for model, rate in expected.items() if rate >= least_per_h]
        return sorted(worth, key=lambda model: -expected[model])

    def _begin_day(self, now: datetime) -> None:
        """Put the days that are over into the averages; days without any request count too."""
        history, today = self._history, now.toordinal()
        if history.day is None:
            history.day = today
        # A clock that went back begins its day anew.
        for _ in range(min(today - history.day, _MOST_DAYS_AWAY)):
            weight = _WEIGHT_OF_NEW_DAY if history.days else 1.0
            for use in history.models.values():
                use.by_hour = [
                    (1 - weight) * usual + weight * new
                    for usual, new in zip(use.by_hour, use.today, strict=True)
                ]
                use.today = [0.0] * _HOURS
            history.days += 1
        history.day = today

    # Keeping it over a restart.

    def to_json(self) -> bytes:
        return self._history.model_dump_json().encode()

    @classmethod
    def from_json(cls, kept: bytes) -> "UsageForecast":
        """Raises ValueError when these are not the words of `to_json`."""
        return cls(_History.model_validate_json(kept))


def _unused() -> _Use:
    return _Use(recent=0.0, at=None, by_hour=[0.0] * _HOURS, today=[0.0] * _HOURS)
