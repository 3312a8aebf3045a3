"""What a key may use, counted."""

import time

import pytest

from controller.gateway.api_keys import ApiKey
from controller.gateway.rate_limiter import ClientRateLimiter
from shared.errors import ClusterError
from shared.ids import ClientName

pytestmark = pytest.mark.anyio


def _key(client: str = "ada", **limits: int) -> ApiKey:
    return ApiKey(client=ClientName(client), sha256="0" * 64, **limits)


async def _may(quotas: ClientRateLimiter, key: ApiKey) -> bool:
    try:
        async with quotas.admit(key):
            return True
    except ClusterError as error:
        assert error.code == "rate_limit_exceeded" and error.retry_after_ms
        return False


async def test_without_limits_anything_goes() -> None:
    quotas = ClientRateLimiter()
    assert all([await _may(quotas, _key()) for _ in range(100)])
    await quotas.charge(_key(), 10**9)
    assert await _may(quotas, _key())


async def test_requests_of_one_client_are_not_those_of_another() -> None:
    quotas = ClientRateLimiter()
    assert [await _may(quotas, _key(requests_per_minute=2)) for _ in range(3)] == [
        True, True, False
    ]  # fmt: skip
    assert await _may(quotas, _key("grace", requests_per_minute=2))


async def test_no_request_more_passes_where_a_minute_of_the_clock_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000_000 * 60 - 0.1
    monkeypatch.setattr(time, "time", lambda: now)
    quotas, key = ClientRateLimiter(), _key(requests_per_minute=1)
    assert await _may(quotas, key)
    now += 0.2
    assert not await _may(quotas, key)
    now += 60
    assert await _may(quotas, key)


async def test_tokens_count_when_they_are_used_and_more_than_were_left_count_as_all() -> None:
    quotas = ClientRateLimiter()
    key = _key(tokens_per_minute=100)
    await quotas.charge(key, 60)
    assert await _may(quotas, key)
    await quotas.charge(key, 60)
    assert not await _may(quotas, key)
    await quotas.charge(key, 60)  # none are left
    assert not await _may(quotas, key)


async def test_who_is_refused_has_used_nothing() -> None:
    quotas = ClientRateLimiter()
    tokenless = _key(tokens_per_minute=1, requests_per_minute=1)
    await quotas.charge(tokenless, 1)
    assert not await _may(quotas, tokenless)
    assert await _may(quotas, _key(requests_per_minute=1))


async def test_a_place_is_given_back_whatever_happens() -> None:
    quotas = ClientRateLimiter()
    key = _key(max_concurrent=1)
    with pytest.raises(RuntimeError):
        async with quotas.admit(key):
            assert not await _may(quotas, key)
            raise RuntimeError
    assert await _may(quotas, key)


async def test_tokens_are_charged_while_they_come_and_once() -> None:
    quotas, key = ClientRateLimiter(), _key(tokens_per_minute=100)
    meter = quotas.meter(key)
    assert meter.is_due(time.monotonic()), "the prompt counts at once"
    await meter.charge(60)
    assert not meter.is_due(time.monotonic()) and meter.is_due(time.monotonic() + 60)
    await meter.charge(60)
    await meter.charge(50)
    await meter.charge(99)
    assert await _may(quotas, key)
    await meter.charge(100)
    assert not await _may(quotas, key)


def test_without_a_limit_no_token_is_charged() -> None:
    assert not ClientRateLimiter().meter(_key()).is_due(time.monotonic() + 10**9)
