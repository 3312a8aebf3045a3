"""The limits of a worker's memory, by the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.settings.worker import ResourceLimitsSettings
from worker.memory.limits import (
    MB,
    MemoryLimits,
    MemoryReading,
    kv_allowances,
    limits_of,
    pressure_of,
)

GB = 1000 * MB


def _reading(
    own_gb: float = 4, available_gb: float = 10, total_gb: float = 16, device_gb: float = 12
) -> MemoryReading:
    values = (own_gb, available_gb, total_gb, device_gb)
    return MemoryReading(*(int(value * GB) for value in values))


def _limits(reading: MemoryReading, soft_gb: float | None = None, hard_gb: float | None = None):  # type: ignore[no-untyped-def]
    settings = ResourceLimitsSettings(
        max_memory_mb=int(soft_gb * 1000) if soft_gb else None,
        critical_memory_mb=int(hard_gb * 1000) if hard_gb else None,
    )
    limits = limits_of(settings, reading)
    return limits.soft_bytes / GB, limits.hard_bytes / GB


@pytest.mark.parametrize(
    ("reading", "hard_gb"),
    [
        (_reading(), 12),  # the device's
        (_reading(available_gb=5), 4 + 5 - 0.8),  # others use the rest
        (_reading(own_gb=9, available_gb=0), 9 - 0.8),  # already too much
        (_reading(total_gb=512, device_gb=400, available_gb=100), 102),  # the reserve is bounded
        (_reading(own_gb=0, available_gb=0), 0),
    ],
)
def test_the_hard_limit_is_the_least_of_all(reading: MemoryReading, hard_gb: float) -> None:
    assert _limits(reading) == pytest.approx((0.9 * hard_gb, hard_gb))


@pytest.mark.parametrize(
    ("soft_gb", "hard_gb", "expected"),
    [
        (None, 8, (7.2, 8)),
        (6, 8, (6, 8)),
        (6, None, (6, 12)),
        (14, 15, (12, 12)),  # more than there is
    ],
)
def test_what_is_configured_counts_as_far_as_there_is_so_much(
    soft_gb: float | None, hard_gb: float | None, expected: tuple[float, float]
) -> None:
    assert _limits(_reading(), soft_gb, hard_gb) == pytest.approx(expected)


def test_pressure_comes_at_the_limit_and_goes_a_little_below_it() -> None:
    limits = MemoryLimits(8 * GB, 10 * GB)
    pressure, seen = pressure_of(limits, 0, "none"), []
    for own_gb in (8, 8.1, 7.9, 7.7, 7.5, 10.1, 9.7, 9.4, 7.5):
        pressure = pressure_of(limits, int(own_gb * GB), pressure)
        seen.append(pressure)
    assert seen == ["none", "soft", "soft", "soft", "none", "hard", "hard", "soft", "none"]


@given(st.integers(0, 20 * GB), st.sampled_from(["none", "soft", "hard"]))
def test_above_a_limit_there_is_always_pressure_and_well_below_none(own: int, before) -> None:  # type: ignore[no-untyped-def]
    limits = MemoryLimits(8 * GB, 10 * GB)
    pressure = pressure_of(limits, own, before)
    if own > limits.hard_bytes:
        assert pressure == "hard"
    elif own > limits.soft_bytes:
        assert pressure != "none"
    elif own <= 0.95 * limits.soft_bytes:
        assert pressure == "none"


# What KV caches may take.

_BYTES = st.integers(0, 600 * GB)


@st.composite
def _holdings(draw: st.DrawFn) -> tuple[MemoryLimits, int, list[int], int]:
    """Limits, what a worker holds, its KV caches among that, and what it can give back."""
    soft, hard = sorted((draw(_BYTES), draw(_BYTES)))
    held = draw(st.lists(st.integers(0, 60 * GB), max_size=8))
    spare, others = draw(_BYTES), draw(_BYTES)
    return MemoryLimits(soft, hard), sum(held) + spare + others, held, spare


@given(_holdings())
def test_kv_caches_may_never_take_more_together_than_brings_all_between_the_limits(
    holdings: tuple[MemoryLimits, int, list[int], int],
) -> None:
    limits, own, held, spare = holdings
    allowances = kv_allowances(limits, own, held, spare)
    others = own - spare - sum(held)
    assert len(allowances) == len(held)
    assert all(allowed >= 0 for allowed in allowances)
    assert sum(allowances) <= max(0, (limits.soft_bytes + limits.hard_bytes) // 2 - others)


@given(_holdings())
def test_nothing_gives_way_while_all_fits_and_otherwise_all_in_proportion(
    holdings: tuple[MemoryLimits, int, list[int], int],
) -> None:
    limits, own, held, spare = holdings
    allowances = kv_allowances(limits, own, held, spare)
    if own - spare <= (limits.soft_bytes + limits.hard_bytes) // 2:
        more = {allowed - each for allowed, each in zip(allowances, held, strict=True)}
        assert all(each >= 0 for each in more) and len(more) <= 1
    else:
        wanted, allowed = sum(held), sum(allowances)
        assert allowed <= wanted
        for each, share in zip(held, allowances, strict=True):
            assert share == pytest.approx(each * allowed / max(1, wanted), abs=len(held))


@pytest.mark.parametrize(
    ("own_gb", "held_gb", "spare_gb", "allowed_gb"),
    [
        (5, [1, 3], 0, [3, 5]),  # 4 GB are free up to 9
        (9, [1, 3], 0, [1, 3]),
        (10, [1, 3], 1, [1, 3]),  # what is kept for later is given back first
        (11, [1, 3], 0, [0.5, 1.5]),
        (20, [1, 3], 0, [0, 0]),
        (20, [0, 0], 0, [0, 0]),
        (5, [], 0, []),
        (20, [], 0, []),
    ],
)
def test_kv_caches_share_what_is_free_and_what_is_short(
    own_gb: int, held_gb: list[int], spare_gb: int, allowed_gb: list[float]
) -> None:
    held = [each * GB for each in held_gb]
    limits = MemoryLimits(8 * GB, 10 * GB)
    allowances = kv_allowances(limits, own_gb * GB, held, spare_gb * GB)
    assert allowances == [each * GB for each in allowed_gb]
