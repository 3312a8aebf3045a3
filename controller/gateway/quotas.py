"""What a key may use: requests and tokens a minute, and requests at once.

Counted in this process, so each of several gateways grants them on its own.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from controller.gateway.keys import Key
from shared.errors import ClusterError
from shared.ids import ClientName

_BUSY_RETRY_MS = 1000


class Quotas:
    """Who used how much lately. Keys of the same client share what it may use."""

    def __init__(self) -> None:
        self._windows = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._active: Counter[ClientName] = Counter()

    @asynccontextmanager
    async def admit(self, key: Key) -> AsyncIterator[None]:
        """Count a request, from now until its end.

        Raises:
            ClusterError: `rate_limit_exceeded`, with the time of the next chance.
        """
        client = key.client
        if key.max_concurrent is not None and self._active[client] >= key.max_concurrent:
            raise ClusterError(
                f"{client} has {key.max_concurrent} requests at once, as many as it may",
                code="rate_limit_exceeded",
                retry_after_ms=_BUSY_RETRY_MS,
            )
        self._active[client] += 1
        try:
            await self._take(key.tokens_per_minute, "tokens", client, 0)
            await self._take(key.requests_per_minute, "requests", client, 1)
            yield
        finally:
            self._active[client] -= 1

    async def charge(self, key: Key, tokens: int) -> None:
        """Count the tokens of a request that ended: more than were left fill the window up."""
        if key.tokens_per_minute is None:
            return
        item = RateLimitItemPerMinute(key.tokens_per_minute, namespace="tokens")
        left = (await self._windows.get_window_stats(item, key.client)).remaining
        if (cost := min(tokens, left)) > 0:
            await self._windows.hit(item, key.client, cost=cost)

    async def _take(self, limit: int | None, what: str, client: ClientName, cost: int) -> None:
        """Raises ClusterError when the window has no room for `cost`, or none at all."""
        if limit is None:
            return
        item: RateLimitItem = RateLimitItemPerMinute(limit, namespace=what)
        if not await self._windows.test(item, client, cost=max(1, cost)):
            stats = await self._windows.get_window_stats(item, client)
            retry_after_ms = max(100, round(1000 * (stats.reset_time - time.time())))
            raise ClusterError(
                f"{client} used its {limit} {what} a minute",
                code="rate_limit_exceeded",
                retry_after_ms=retry_after_ms,
            )
        if cost:
            await self._windows.hit(item, client, cost=cost)
