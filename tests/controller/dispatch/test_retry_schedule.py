"""When a failed attempt is followed by another one, decided with values."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.dispatch.wait_queue import RetrySchedule
from shared.settings.controller import RetrySettings


def delays_ms(draw: float = 0.5, **settings: Any) -> list[float]:
    """Of all that are allowed."""
    schedule = RetrySchedule(RetrySettings(**settings), lambda: draw)
    delays = []
    failures = 1
    while (delay_s := schedule.delay_s(failures)) is not None:
        delays.append(round(delay_s * 1000, 6))
        failures += 1
    return delays


def test_each_delay_is_a_multiple_of_the_one_before_up_to_the_longest() -> None:
    settings = {"initial_delay_ms": 100, "max_delay_ms": 1000, "multiplier": 3.0}
    assert delays_ms(max_attempts=6, **settings) == [100, 300, 900, 1000, 1000]


def test_without_retries_there_is_none() -> None:
    assert delays_ms(enabled=False) == []


def test_the_draw_moves_a_delay_to_either_side() -> None:
    settings = {"initial_delay_ms": 100, "jitter": 0.25, "max_attempts": 2}
    assert [delays_ms(draw, **settings) for draw in (0.0, 0.5, 1.0)] == [[75], [100], [125]]
    assert delays_ms(0.0, initial_delay_ms=100, jitter=0, max_attempts=2) == [100]


def test_a_steep_schedule_does_not_overflow() -> None:
    settings = {"initial_delay_ms": 86_400_000, "max_delay_ms": 86_400_000, "multiplier": 100}
    assert delays_ms(max_attempts=100, **settings) == [86_400_000] * 99


@given(
    st.builds(
        RetrySettings,
        max_attempts=st.integers(1, 100),
        initial_delay_ms=st.integers(0, 86_400_000),
        max_delay_ms=st.integers(0, 86_400_000),
        multiplier=st.floats(1, 100),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, 200),
    st.floats(0, 1),
)
def test_a_delay_is_within_the_jitter_of_what_a_power_gives(
    settings: RetrySettings, failures: int, draw: float
) -> None:
    delay_s = RetrySchedule(settings, lambda: draw).delay_s(failures)
    assert (delay_s is None) is (failures >= settings.max_attempts)
    if delay_s is None:
        return
    power_ms = settings.initial_delay_ms * settings.multiplier ** (failures - 1)
    middle_s = min(settings.max_delay_ms, power_ms) / 1000
    assert math.isfinite(delay_s) and delay_s >= 0
    slack = 1e-9 * (1 + middle_s)
    assert abs(delay_s - middle_s) <= middle_s * settings.jitter + slack
