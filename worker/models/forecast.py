"""What use so far says will be asked for next. Decides only.

Two estimates of a model's requests per hour, of which the higher counts: the recent rate, in
which a request weighs half after an hour; and what was asked at this time of day, an average over
days in which the newest weighs a third.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from shared.ids import ModelId

_HALF_LIFE = timedelta(hours=1)
_WEIGHT_OF_NEW_DAY = 1 / 3
_AHEAD = timedelta(minutes=15)
_HOURS = 24
_MOST_DAYS_AWAY = 30


@dataclass(slots=True)
class _Use:
    """Of one model.

    Attributes:
        recent: requests, each by its weight as of `at`.
        by_hour: requests on an average day.
        today: requests of the day that is not over.
    """

    recent: float = 0.0
    at: datetime | None = None
    by_hour: list[float] = field(default_factory=lambda: [0.0] * _HOURS)
    today: Counter[int] = field(default_factory=Counter)

    def decayed(self, now: datetime) -> float:
        if self.at is None:
            return 0.0
        age = max(now - self.at, timedelta())
        return float(self.recent * 0.5 ** (age / _HALF_LIFE))


class UsageForecast:
    """Counts requests by model and time. All times are local and may jump."""

    def __init__(self) -> None:
        self._uses: dict[ModelId, _Use] = {}
        self._day: int | None = None
        self._days = 0  # that are in the averages

    def used(self, model: ModelId, now: datetime) -> None:
        """A request came for a model."""
        self._begin_day(now)
        use = self._uses.setdefault(model, _Use())
        use.recent, use.at = use.decayed(now) + 1, now
        use.today[now.hour] += 1

    def expected_per_h(self, model: ModelId, now: datetime) -> float:
        """Requests to expect in the next hour."""
        self._begin_day(now)
        use = self._uses.get(model)
        if use is None:
            return 0.0
        rate = use.decayed(now) * math.log(2) / (_HALF_LIFE / timedelta(hours=1))
        usual = use.by_hour[(now + _AHEAD).hour] if self._days else 0.0
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
        today = now.toordinal()
        if self._day is None or today < self._day:  # the first, or the clock went back
            self._day = today
            return
        for _ in range(min(today - self._day, _MOST_DAYS_AWAY)):
            weight = _WEIGHT_OF_NEW_DAY if self._days else 1.0
            for use in self._uses.values():
                use.by_hour = [
                    (1 - weight) * usual + weight * use.today[hour]
                    for hour, usual in enumerate(use.by_hour)
                ]
                use.today.clear()
            self._days += 1
        self._day = today

    # Keeping it over a restart.

    def to_json(self) -> dict[str, Any]:
        return {
            "day": self._day,
            "days": self._days,
            "models": {
                model: {
                    "recent": use.recent,
                    "at": use.at.isoformat() if use.at else None,
                    "by_hour": use.by_hour,
                    "today": [use.today[hour] for hour in range(_HOURS)],
                }
                for model, use in self._uses.items()
            },
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "UsageForecast":
        """Raises KeyError, TypeError or ValueError when these are not the words of `to_json`."""
        forecast = cls()
        forecast._day = int(kept["day"]) if kept["day"] is not None else None
        forecast._days = int(kept["days"])
        for model, fields in kept["models"].items():
            by_hour = [float(count) for count in fields["by_hour"]]
            if len(by_hour) != _HOURS or len(fields["today"]) != _HOURS:
                raise ValueError(f"a day has {_HOURS} hours")
            at = datetime.fromisoformat(fields["at"]) if fields["at"] else None
            today = Counter({hour: int(count) for hour, count in enumerate(fields["today"])})
            forecast._uses[ModelId(model)] = _Use(float(fields["recent"]), at, by_hour, today)
        return forecast
