"""Rate limits of API keys: requests and tokens per minute, and concurrent requests.

Each gateway process counts on its own, so several gateways multiply the limits.
"""

import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import (
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)

from controller.gateway.api_keys import ApiKey
from shared.errors import ClusterError
from shared.ids import ClientName

_BUSY_RETRY_MS = 1000
_CHARGE_EVERY_S = 1.0


class ClientRateLimiter:
    """Counts the use of each client. Keys of one client share its limits."""

    def __init__(self) -> None:
        storage = MemoryStorage()
        # The counter is approximate at the start of a minute, which does not matter for tokens.
        self._requests = MovingWindowRateLimiter(storage)
        self._tokens = SlidingWindowCounterRateLimiter(storage)
        self._active: Counter[ClientName] = Counter()

    @asynccontextmanager
    async def admit(self, key: ApiKey) -> AsyncIterator[None]:
        """Count a request while the context is open.

        Raises:
            ClusterError: `rate_limit_exceeded`, with the time to wait before a retry.
        """
        client = key.client
        if key.max_concurrent is not None and self._active[client] >= key.max_concurrent:
            raise ClusterError(
                f"{client} has {key.max_concurrent} concurrent requests, its limit",
                code="rate_limit_exceeded",
                retry_after_ms=_BUSY_RETRY_MS,
            )
        self._active[client] += 1
        try:
            if key.tokens_per_minute is not None:
                item = RateLimitItemPerMinute(key.tokens_per_minute, namespace="tokens")
                if not await self._tokens.test(item, client):
                    raise await _limit_exceeded(self._tokens, item, client)
            if key.requests_per_minute is not None:
                item = RateLimitItemPerMinute(key.requests_per_minute, namespace="requests")
                if not await self._requests.hit(item, client):
                    raise await _limit_exceeded(self._requests, item, client)
            yield
        finally:
            self._active[client] -= 1

    def meter(self, key: ApiKey) -> "TokenMeter":
        """Return what counts the tokens of one request."""
        return TokenMeter(self, key)

    async def charge(self, key: ApiKey, tokens: int) -> None:
        """Count tokens, at most those that are left in the window."""
        if key.tokens_per_minute is None:
            return
        item = RateLimitItemPerMinute(key.tokens_per_minute, namespace="tokens")
        remaining = (await self._tokens.get_window_stats(item, key.client)).remaining
        if (cost := min(tokens, remaining)) > 0:
            await self._tokens.hit(item, key.client, cost=cost)


class TokenMeter:
    """Charges the tokens of one request while they come: requests that run count towards the limit,
    and who leaves before the end has used what came until then."""

    def __init__(self, limiter: ClientRateLimiter, key: ApiKey) -> None:
        self._limiter = limiter
        self._key = key
        self._charged = 0
        self._due_at = 0.0 if key.tokens_per_minute is not None else math.inf

    def is_due(self, now: float) -> bool:
        """Whether the tokens should be charged now, on the monotonic clock. Never without a
        limit."""
        return now >= self._due_at

    async def charge(self, tokens: int) -> None:
        """Charge what was not charged yet of all tokens so far."""
        self._due_at = max(self._due_at, time.monotonic() + _CHARGE_EVERY_S)
        new, self._charged = tokens - self._charged, max(tokens, self._charged)
        if new > 0:
            await self._limiter.charge(self._key, new)


async def _limit_exceeded(
    limiter: RateLimiter, item: RateLimitItem, client: ClientName
) -> ClusterError:
    stats = await limiter.get_window_stats(item, client)
    return ClusterError(
        f"{client} used its {item.amount} {item.namespace} per minute",
        code="rate_limit_exceeded",
        retry_after_ms=max(100, round(1000 * (stats.reset_time - time.time()))),
    )
