"""A plain NATS client that publishes a request by hand, where the client library would repeat and
repair."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson
from nats.aio.subscription import Subscription

from shared.bus.client import PatchedNatsClient
from shared.settings.nats import NatsSettings
from tests.access.roles import as_client, connect_options
from tests.faults.asks import Ask

_CONNECT_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class RawStream:
    """A request that was published, and the subscription to its messages, which nobody reads."""

    request_id: str
    subscription: Subscription

    async def unsubscribe(self) -> None:
        await self.subscription.unsubscribe()


class RawClient:
    """Publishes requests. It neither repeats nor repairs anything."""

    def __init__(self, client: PatchedNatsClient) -> None:
        self.nats = client

    async def ask(self, ask: Ask) -> RawStream:
        inbox = self.nats.new_inbox()
        stream = RawStream(f"raw-{uuid4().hex}", await self.nats.subscribe(inbox, cb=_ignore))
        body = {**ask.fields, "request_id": stream.request_id}
        await self.nats.publish("mlx.infer.local.chat", orjson.dumps(body), reply=inbox)
        return stream

    async def request(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One question and its one answer."""
        payload = orjson.dumps(body) if body is not None else b""
        answer = await self.nats.request(subject, payload, timeout=30)
        found: dict[str, Any] = orjson.loads(answer.data)
        return found

    async def health(self, worker: str) -> dict[str, Any]:
        """The report of a worker."""
        answer = await self.request(f"mlx.health.worker.{worker}")
        report: dict[str, Any] = answer["worker"]
        return report


@asynccontextmanager
async def plain_client(settings: NatsSettings) -> AsyncIterator[PatchedNatsClient]:
    """A connection that comes back whenever the server does.

    Raises:
        TimeoutError: no server took it within the limit.
    """
    client = PatchedNatsClient()
    try:
        async with asyncio.timeout(_CONNECT_LIMIT_S):  # nats-py itself tries for ever
            await client.connect(
                **(connect_options(settings) | {"reconnect_time_wait": 0.1}),
                max_reconnect_attempts=-1,
                error_cb=_ignore,
            )
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def raw_client(url: str) -> AsyncIterator[RawClient]:
    async with plain_client(as_client(url)) as client:
        yield RawClient(client)


async def _ignore(_: object) -> None:
    pass
