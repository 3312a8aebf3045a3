"""What use so far says will be asked for: recent use, the time of day, and clocks that jump."""

import math
from datetime import datetime, timedelta
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ids import ModelId
from tests.random_json import changed
from worker.models.usage_forecast import UsageForecast

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_MONDAY = datetime(2026, 3, 2)
_NOON = _MONDAY + 12 * _HOUR
_TINY, _DEMO, _CODER = ModelId("tiny"), ModelId("demo"), ModelId("coder")
_MODELS = st.sampled_from([_TINY, _DEMO, _CODER])
_TIMES = st.datetimes(datetime(2025, 1, 1), datetime(2026, 12, 31))
_USES = st.lists(st.tuples(_MODELS, _TIMES), max_size=20)

_RATE = math.log(2)
"""What one request, just now, adds to those expected in the next hour."""


def _used(forecast: UsageForecast, at: datetime, count: int = 1, model: ModelId = _TINY) -> None:
    for _ in range(count):
        forecast.record(model, at)


def _expected(forecast: UsageForecast, now: datetime, model: ModelId = _TINY) -> float:
    return forecast.expected_per_h(model, now)


# Recent use.


def test_nothing_is_expected_of_a_model_that_nobody_used() -> None:
    forecast = UsageForecast()
    _used(forecast, _NOON, model=_DEMO)
    assert _expected(forecast, _NOON) == 0


@pytest.mark.parametrize(("hours", "share"), [(0, 1), (1, 1 / 2), (2, 1 / 4), (0.5, 0.5**0.5)])
def test_a_request_weighs_half_after_an_hour(hours: float, share: float) -> None:
    forecast = UsageForecast()
    _used(forecast, _NOON, 3)
    assert _expected(forecast, _NOON + hours * _HOUR) == pytest.approx(3 * _RATE * share)


def test_what_came_before_counts_by_its_age_when_more_comes() -> None:
    forecast = UsageForecast()
    _used(forecast, _NOON, 4)
    _used(forecast, _NOON + _HOUR)
    assert _expected(forecast, _NOON + 2 * _HOUR) == pytest.approx((4 / 4 + 1 / 2) * _RATE)


@pytest.mark.parametrize("per_h", [2, 60])
def test_steady_use_is_expected_to_go_on(per_h: int) -> None:
    forecast = UsageForecast()
    for number in range(8 * per_h):
        _used(forecast, _MONDAY + number / per_h * _HOUR)
    assert _expected(forecast, _MONDAY + 8 * _HOUR) == pytest.approx(per_h, rel=0.2)


# The time of day.


def test_what_was_asked_for_at_this_time_yesterday_is_expected_a_little_before() -> None:
    forecast = UsageForecast()
    _used(forecast, _MONDAY + 9.5 * _HOUR, 10)
    tomorrow = _MONDAY + _DAY
    assert _expected(forecast, tomorrow + 8.70 * _HOUR) < 0.01
    assert _expected(forecast, tomorrow + 8.80 * _HOUR) == 10
    assert _expected(forecast, tomorrow + 9.70 * _HOUR) == 10
    assert _expected(forecast, tomorrow + 9.80 * _HOUR) < 0.01


def test_shortly_before_midnight_the_first_hour_of_the_day_counts() -> None:
    forecast = UsageForecast()
    _used(forecast, _MONDAY + 0.5 * _HOUR, 5)
    assert _expected(forecast, _MONDAY + _DAY + 23.8 * _HOUR) == pytest.approx(5)


@pytest.mark.parametrize(
    ("days", "usual"),
    [
        ([9], 9),
        ([9, 0], 6),
        ([9, 3], 7),
        ([9, 0, 0], 4),
        ([0, 9], 3),  # where the first day knew of another model only
    ],
)
def test_of_several_days_the_newest_weighs_a_third(days: list[int], usual: float) -> None:
    forecast = UsageForecast()
    _used(forecast, _MONDAY, model=_DEMO)
    for number, count in enumerate(days):
        _used(forecast, _NOON + number * _DAY, count)
    assert _expected(forecast, _NOON + len(days) * _DAY) == pytest.approx(usual)


@pytest.mark.parametrize("days", [1, 2, 5])
def test_days_without_any_use_count_as_such(days: int) -> None:
    forecast = UsageForecast()
    _used(forecast, _NOON, 9)
    later = _NOON + (1 + days) * _DAY
    assert _expected(forecast, later) == pytest.approx(9 * (2 / 3) ** days)


@pytest.mark.parametrize("away", [31 * _DAY, 90 * _DAY, 7000 * 365 * _DAY])
def test_after_a_month_away_nothing_is_left(away: timedelta) -> None:
    forecast = UsageForecast()
    _used(forecast, _NOON, 100)
    assert _expected(forecast, _NOON + away) < 0.01


def test_the_day_that_is_not_over_is_not_yet_usual() -> None:
    forecast = UsageForecast()
    _used(forecast, _MONDAY + _HOUR, 10)
    assert _expected(forecast, _MONDAY + 12 * _HOUR) < 0.01


# Clocks that jump.


def test_a_clock_that_went_back_an_hour_makes_no_request_weigh_more() -> None:
    forecast = UsageForecast()
    _used(forecast, _NOON)
    assert _expected(forecast, _NOON - _HOUR) == pytest.approx(_RATE)
    _used(forecast, _NOON - _HOUR)
    assert _expected(forecast, _NOON) == pytest.approx(2 * _RATE / 2)


def test_a_clock_that_went_back_some_days_and_is_set_right_makes_nobody_forget() -> None:
    forecast = UsageForecast()
    _used(forecast, _NOON, 9)
    assert _expected(forecast, _NOON + _DAY) == pytest.approx(9)
    _expected(forecast, _NOON - 40 * _DAY)
    assert _expected(forecast, _NOON - 40 * _DAY) == pytest.approx(9)


@given(_USES, _TIMES)
def test_whatever_the_clock_does_no_more_is_expected_than_there_ever_was(
    uses: list[tuple[ModelId, datetime]], now: datetime
) -> None:
    forecast = UsageForecast()
    for number, (model, at) in enumerate(uses, start=1):
        forecast.record(model, at)
        assert 0 <= _expected(forecast, at, model) <= number
    for model in (_TINY, _DEMO, _CODER):
        assert 0 <= _expected(forecast, now, model) <= sum(used == model for used, _ in uses)


# What is proposed.


def test_the_most_used_is_proposed_first_and_equals_as_they_were_named() -> None:
    forecast = UsageForecast()
    for model, count in ((_TINY, 2), (_DEMO, 5), (_CODER, 2)):
        _used(forecast, _NOON, count, model)
    named = [_CODER, ModelId("never used"), _TINY, _DEMO]
    assert forecast.propose(named, _NOON, least_per_h=0.1) == [_DEMO, _CODER, _TINY]
    assert forecast.propose([_TINY], _NOON, least_per_h=0.1) == [_TINY]


def test_what_is_hardly_asked_for_is_not_proposed() -> None:
    forecast = UsageForecast()
    _used(forecast, _MONDAY + 9 * _HOUR, 3)
    at_nine = _MONDAY + _DAY + 9 * _HOUR
    assert forecast.propose([_TINY], at_nine, least_per_h=3) == [_TINY]
    assert forecast.propose([_TINY], at_nine, least_per_h=3.1) == []


# Over a restart.


def _kept(forecast: UsageForecast) -> Any:
    return orjson.loads(forecast.to_json())


@given(_USES, _USES)
def test_after_a_restart_the_same_is_expected(
    before: list[tuple[ModelId, datetime]], after: list[tuple[ModelId, datetime]]
) -> None:
    forecast = UsageForecast()
    for model, at in before:
        forecast.record(model, at)
    again = UsageForecast.from_json(forecast.to_json())
    from_file = UsageForecast.from_json(orjson.dumps(_kept(forecast)))
    for one in (again, from_file):
        assert one.to_json() == forecast.to_json()
    for model, at in after:
        forecast.record(model, at)
        from_file.record(model, at)
        assert _expected(from_file, at, model) == _expected(forecast, at, model)


def _valid() -> dict[str, Any]:
    forecast = UsageForecast()
    _used(forecast, _NOON - _DAY, 3)
    _used(forecast, _NOON, 2, _DEMO)
    _used(forecast, _NOON)
    valid: dict[str, Any] = _kept(forecast)
    return valid


def _read(kept: Any) -> UsageForecast | None:
    """None where it is refused, with one of the errors that the caller was told of."""
    try:
        return UsageForecast.from_json(orjson.dumps(kept))
    except ValueError:
        return None


def _check_usable(forecast: UsageForecast) -> None:
    for now in (_NOON, _NOON + _DAY):
        for model in (_TINY, _DEMO):
            assert math.isfinite(_expected(forecast, now, model))
            forecast.record(model, now)
        assert UsageForecast.from_json(forecast.to_json())


_HOSTILE: dict[str, Any] = {
    "recent": [None, "x", [], "nan", "inf", "9" * 400],
    "at": [5, "yesterday", "2026-03-02T12:00:00+01:00", "2026-03-02T12:00:00Z"],
    "by_hour": [None, [], [0] * 23, [0] * 25, ["x"] * 24, ["nan"] * 24, {}],
    "today": [None, [], [0] * 25, [None] * 24, [1e30] * 24, ["9" * 400] * 24],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in _HOSTILE.items() for value in values]
)
def test_what_a_model_is_said_to_have_is_refused_or_can_be_counted_with(
    field: str, value: Any
) -> None:
    kept = _valid()
    kept["models"]["tiny"][field] = value
    forecast = _read(kept)
    if forecast is not None:
        _check_usable(forecast)


@pytest.mark.parametrize(
    "kept",
    [
        *(None, 5, "x", [], {}),
        {"day": None, "days": 0},
        {"day": "x", "days": 0, "models": {}},
        {"day": None, "days": None, "models": {}},
        {"day": None, "days": 0, "models": []},
        {"day": None, "days": 0, "models": None},
        {"day": None, "days": 0, "models": {"tiny": None}},
        {"day": None, "days": 0, "models": {"tiny": {}}},
    ],
)
def test_what_is_no_history_is_refused(kept: Any) -> None:
    assert _read(kept) is None


@pytest.mark.parametrize("field", ["day", "days"])
@pytest.mark.parametrize("value", [-(10**9), -1, 0, 10**9, 1e30])
def test_days_that_cannot_be_are_refused_or_can_be_counted_with(field: str, value: float) -> None:
    forecast = _read({**_valid(), field: value})
    if forecast is not None:
        _check_usable(forecast)


@given(st.randoms(use_true_random=False))
def test_a_history_that_somebody_changed_is_refused_or_can_be_counted_with(random: Random) -> None:
    kept = changed(random, _valid())
    forecast = _read(kept)
    if forecast is not None:
        _check_usable(forecast)
