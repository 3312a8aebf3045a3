"""What a worker does for whom, seen from outside: its health, what the leader says of requests, and
the tokens that the worker tells the leader of."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
from nats.aio.msg import Msg

from shared.change_notifier import ChangeNotifier
from tests.raw_client import RawClient

_POLL_S = 0.02
_LIMIT_S = 30
_SERVED = ("accepted", "dispatching", "running")


class WorkerObserver:
    """Watches the only worker of a cluster. Call `watch` before the requests are sent."""

    def __init__(self, raw: RawClient, worker: str) -> None:
        self._raw = raw
        self._worker = worker
        self._changes = ChangeNotifier()
        self._asked: set[str] = set()
        self.tokens: dict[str, int] = {}

    async def watch(self) -> None:
        await self._raw.nats.subscribe("mlx.infer.*.*", cb=self._take_request)
        await self._raw.nats.subscribe("mlx.event.request.*.*", cb=self._take)
        await self._raw.health(self._worker)  # a round trip: the subscription is there

    async def generates(self, request_id: str) -> None:
        """Return once the worker has generated a token for this request."""
        await self._changes.wait_until(lambda: request_id in self.tokens)

    async def health(self) -> dict[str, Any]:
        return await self._raw.health(self._worker)

    async def requests(self) -> set[str]:
        """The ids of the requests that are served, by the leader's word; queued ones too."""
        served = set()
        for request_id in sorted(self._asked):
            state = await self._raw.request("mlx.request.local.status", {"request_id": request_id})
            if state["state"] in _SERVED:
                served.add(request_id)
            else:
                self._asked.discard(request_id)
        return served

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
                    f"not within {_LIMIT_S} s: {what}; served are {sorted(requests)}, active "
                    f"{health['active_requests']}, queued {health['queued_requests']}"
                )
            await asyncio.sleep(_POLL_S)

    async def _take_request(self, msg: Msg) -> None:
        self._asked.add(orjson.loads(msg.data)["request_id"])

    async def _take(self, msg: Msg) -> None:
        for event in orjson.loads(msg.data)["events"]:
            if event["type"] == "tokens":
                name = event["request_id"]
                self.tokens[name] = self.tokens.get(name, 0) + len(event["token_ids"])
        self._changes.notify()
