"""What a worker does for whom, seen from outside: its health, its list of requests, and the
tokens that it tells controllers of."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
from nats.aio.msg import Msg

from shared.changes import Changes
from tests.raw_client import RawClient

_POLL_S = 0.02
_LIMIT_S = 30


class WorkerObserver:
    """Watches one worker. Call `watch` before the requests are sent."""

    def __init__(self, raw: RawClient, worker: str) -> None:
        self._raw = raw
        self._worker = worker
        self._changes = Changes()
        self.tokens: dict[str, int] = {}

    async def watch(self) -> None:
        await self._raw.nats.subscribe("mlx.event.request.*", cb=self._take)
        await self._raw.health(self._worker)  # a round trip: the subscription is there

    async def generates(self, request_id: str) -> None:
        """Return once the worker has generated a token for this request."""
        await self._changes.wait_until(lambda: request_id in self.tokens)

    async def health(self) -> dict[str, Any]:
        return await self._raw.health(self._worker)

    async def requests(self) -> set[str]:
        """The ids of the requests that the worker has, queued ones too."""
        subject = f"mlx.worker.{self._worker}.control.requests"
        answer = await self._raw.request(subject, {"protocol": 1})
        return {request["request_id"] for request in answer["requests"]}

    async def until(self, condition: Callable[[dict[str, Any], set[str]], bool], what: str) -> None:
        """Poll health and requests until `condition` holds of them.

        Raises:
            AssertionError: not within 30 s.
        """
        started = time.monotonic()
        while True:
            health, requests = await self.health(), await self.requests()
            if condition(health, requests):
                return
            if time.monotonic() - started > _LIMIT_S:
                raise AssertionError(
                    f"not within {_LIMIT_S} s: {what}; the worker has {sorted(requests)}, active "
                    f"{health['active_requests']}, queued {health['queued_requests']}"
                )
            await asyncio.sleep(_POLL_S)

    async def _take(self, msg: Msg) -> None:
        for event in orjson.loads(msg.data)["events"]:
            if event["type"] == "tokens":
                name = event["request_id"]
                self.tokens[name] = self.tokens.get(name, 0) + len(event["token_ids"])
        self._changes.notify()
