"""Many requests at once on one connection, and all that came back for each."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared import subjects
from shared.ids import LOCAL_CLIENT
from shared.settings.nats import NatsSettings
from tests.access.roles import as_client, as_role, connect_options
from tests.processes import ClusterProcess

LIMIT_S = 60


@dataclass(slots=True, repr=False)
class Answer:
    """What one inbox got.

    Attributes:
        arrived: the messages as they came.
        messages: the same, the multiplexed ones taken apart.
        ended: set at the first message with `done`.
    """

    arrived: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ends(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("done")]

    @property
    def token_ids(self) -> list[int]:
        """Those of all choices, one choice after another."""
        by_choice: dict[int, list[int]] = {}
        for message in self.messages:
            for output in message.get("choices", [message] if "index" in message else []):
                by_choice.setdefault(output["choice"], []).extend(output["token_ids"])
        return [token for choice in sorted(by_choice) for token in by_choice[choice]]

    async def take(self, msg: Msg) -> None:
        body = json.loads(msg.data)
        self.arrived.append(body)
        self.messages.extend(body["messages"] if "messages" in body else [body])
        if self.ends:
            self.ended.set()


class Asker:
    """One client connection to a running cluster."""

    def __init__(self, client: Client, cluster: ClusterProcess) -> None:
        self.client = client
        self._cluster = cluster

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, cluster: ClusterProcess, who: NatsSettings | None = None
    ) -> AsyncIterator["Asker"]:
        """As the client `local`, unless it is said who connects."""
        client = await nats.connect(**connect_options(who or as_client(cluster.url)))
        try:
            yield cls(client, cluster)
        finally:
            await client.close()

    async def ask(self, payload: bytes, subject: str = "mlx.infer.local.chat") -> Answer:
        """Publish a request; `ended` of its answer tells when the end is there."""
        answer = Answer()
        inbox = self.client.new_inbox()
        await self.client.subscribe(inbox, cb=answer.take)
        await self.client.publish(subject, payload, reply=inbox)
        return answer

    async def answers(self, payloads: Iterable[bytes]) -> list[Answer]:
        """All of them at once, to their ends."""
        asked = [await self.ask(payload) for payload in payloads]
        await ended(asked)
        return asked

    async def settle(self) -> None:
        """Return once all that controllers and workers have published so far is here."""
        for _ in range(2):  # the second is behind what the first made them publish
            await self.reports()

    async def reports(self) -> list[dict[str, Any]]:
        """What every worker and controller says of itself now."""
        ready = self._cluster.ready
        asked = [(subjects.worker_health(worker), "worker") for worker in ready["workers"]]
        asked += [(subjects.controller_health(one), "controller") for one in ready["controllers"]]
        return [await self._health(subject, who) for subject, who in asked]

    async def until_idle(self, limit_s: float = LIMIT_S) -> None:
        """Return once no worker and no controller has a request.

        Raises:
            AssertionError: somebody still has one after `limit_s`; it says who.
        """
        deadline = asyncio.get_running_loop().time() + limit_s
        while kept := {
            report["id"]: report["active_requests"]
            for report in await self.reports()
            if report["active_requests"]
        }:
            assert asyncio.get_running_loop().time() < deadline, f"requests are kept: {kept}"
            await asyncio.sleep(0.05)

    async def _health(self, subject: str, who: str) -> dict[str, Any]:
        answer = await self.client.request(subject, timeout=LIMIT_S)
        report: dict[str, Any] = json.loads(answer.data)[who]
        return report

    async def logs_since(self, moment: str) -> list[dict[str, Any]]:
        """What every process logged from `moment` (ISO 8601, UTC) on.

        Gateways before the cluster answer too: the answers are told apart by their records.
        """
        found: list[dict[str, Any]] = []
        heard = asyncio.Event()
        awaited = {*self._cluster.ready["workers"], *self._cluster.ready["controllers"]}

        async def take(msg: Msg) -> None:
            records = json.loads(msg.data)["records"]
            found.extend(records)
            awaited.difference_update(record["id"] for record in records)
            if not awaited:
                heard.set()

        nats_settings = as_role("admin", LOCAL_CLIENT, self._cluster.url)
        admin = await nats.connect(**connect_options(nats_settings, "admin"))
        try:
            inbox = admin.new_inbox()
            await admin.subscribe(inbox, cb=take)
            await admin.publish(subjects.RECENT_LOGS, b'{"limit": 1000}', reply=inbox)
            await asyncio.wait_for(heard.wait(), LIMIT_S)
        finally:
            await admin.close()
        return [record for record in found if record["time"] >= moment]


async def ended(answers: Iterable[Answer]) -> None:
    async with asyncio.timeout(LIMIT_S):
        for answer in answers:
            await answer.ended.wait()
