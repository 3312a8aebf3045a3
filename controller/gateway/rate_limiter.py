"""Rate limits of API keys: requests and tokens per minute, and concurrent requests.

Each gateway process counts on its own, so several gateways multiply the limits.
"""

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

    async def charge(self, key: ApiKey, tokens: int) -> None:
        """Count the tokens of a finished request, at most those that are left in the window."""
        if key.tokens_per_minute is None:
            return
        item = RateLimitItemPerMinute(key.tokens_per_minute, namespace="tokens")
        remaining = (await self._tokens.get_window_stats(item, key.client)).remaining
        if (cost := min(tokens, remaining)) > 0:
            await self._tokens.hit(item, key.client, cost=cost)


async def _limit_exceeded(
    limiter: RateLimiter, item: RateLimitItem, client: ClientName
) -> ClusterError:
    stats = await limiter.get_window_stats(item, client)
    return ClusterError(
        f"{client} used its {item.amount} {item.namespace} per minute",
        code="rate_limit_exceeded",
        retry_after_ms=max(100, round(1000 * (stats.reset_time - time.time()))),
    )
