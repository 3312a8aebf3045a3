"""What really passes on the wire: a plain NATS client that publishes a request by hand and
keeps every message, where the client library would hide what comes twice or late."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import nats
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.changes import Changes
from tests.access.roles import as_client, connect_options
from tests.faults.asks import Ask


@dataclass(slots=True)
class RawStream:
    """Every message of one request, in the order of arrival."""

    name: str
    request_id: str
    inbox: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    heard_at: list[float] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    subscription: Subscription | None = None

    @property
    def accepted(self) -> bool:
        return any(message.get("status") == "accepted" for message in self.messages)

    @property
    def tokens(self) -> int:
        return sum(len(message.get("token_ids", ())) for message in self.messages)

    @property
    def terminals(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("done")]

    @property
    def ended(self) -> bool:
        return bool(self.terminals)

    def said(self) -> str:
        """The ends, in words, for a failure's message."""
        ends = [(m["attempt"], m["worker"], m.get("error", "done")) for m in self.terminals]
        return f"{self.name} ({self.request_id}): {len(self.messages)} messages, ends {ends}"

    async def take(self, msg: Msg) -> None:
        self.heard_at.append(time.monotonic())
        if msg.data:  # else it is the server's 503: nobody takes requests now
            self.messages.append(orjson.loads(msg.data))
        self.changes.notify()

    async def unsubscribe(self) -> None:
        assert self.subscription is not None
        await self.subscription.unsubscribe()


class RawClient:
    """Publishes requests. It neither repeats nor repairs anything."""

    def __init__(self, client: Client) -> None:
        self.nats = client

    async def ask(self, ask: Ask) -> RawStream:
        stream = RawStream(ask.name, f"raw-{uuid4().hex}", self.nats.new_inbox())
        stream.subscription = await self.nats.subscribe(stream.inbox, cb=stream.take)
        body = {**ask.fields, "request_id": stream.request_id}
        await self.nats.publish("mlx.infer.local.chat", orjson.dumps(body), reply=stream.inbox)
        return stream

    async def request(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One question and its one answer."""
        payload = orjson.dumps(body) if body is not None else b""
        answer = await self.nats.request(subject, payload, timeout=5)
        found: dict[str, Any] = orjson.loads(answer.data)
        return found

    async def health(self, worker: str) -> dict[str, Any]:
        """The report of a worker."""
        answer = await self.request(f"mlx.health.worker.{worker}")
        report: dict[str, Any] = answer["worker"]
        return report


@asynccontextmanager
async def raw_client(url: str) -> AsyncIterator[RawClient]:
    """A connection that comes back whenever the server does."""

    async def ignore(_: Exception) -> None:
        pass

    client = await nats.connect(
        **connect_options(as_client(url)),
        reconnect_time_wait=0.2,
        max_reconnect_attempts=-1,
        error_cb=ignore,
    )
    try:
        yield RawClient(client)
    finally:
        await client.close()
