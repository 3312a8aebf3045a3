"""Those who ask meanwhile: users of the Python client, users who write NATS messages by hand, and
conversations. Each asks again as soon as it has its answer."""

import asyncio
import contextlib
import json
import random
import time
from uuid import uuid4

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.client import Cluster
from tests.faults.asks import Ask
from tests.faults.evidence import Evidence
from tests.faults.known import Known
from tests.faults.load import Load
from tests.faults.records import WireRecord

_INTERRUPTS_S = 0.1
_LINGERS_S = 0.2
_LISTENS_ON_S = 5.0


class Users:
    """Ask until they are told to stop.

    Args:
        limit_s: an answer that takes longer hangs.
        silence_s: an answer on the wire that says nothing for this long has lost its end.
        patience_s: who writes by hand publishes again when nothing was heard for so long.
        thinks_s: the longest pause between an answer and the next request.

    Attributes:
        evidence: what they sent and heard.
    """

    def __init__(
        self,
        cluster: Cluster,
        plain: Client,
        known: Known,
        chance: random.Random,
        *,
        limit_s: float,
        silence_s: float = 30.0,
        patience_s: float = 1.0,
        thinks_s: float = 0.2,
    ) -> None:
        self._silence_s = silence_s
        self._patience_s = patience_s
        self._limit_s = limit_s
        self._thinks_s = thinks_s
        self.evidence = Evidence()
        self._cluster = cluster
        self._plain = plain
        self._asks, self._conversations = known.asks, known.conversations
        self._truths = known.truths
        self._chance = chance
        self._stopping = False
        self._listening: set[asyncio.Task[None]] = set()

    async def run(self, *, library: int, by_hand: int, talkers: int) -> None:
        """So many of each kind; returns once all have stopped and have their last answers."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(library):
                tasks.create_task(self._use_library())
            for _ in range(by_hand):
                tasks.create_task(self._write_by_hand())
            for _ in range(talkers):
                tasks.create_task(self._talk())
        if self._listening:
            await asyncio.wait(self._listening)

    def stop(self) -> None:
        """Ask nothing new."""
        self._stopping = True

    async def _use_library(self) -> None:
        while not self._stopping:
            await self._load(self._chance.choice(self._asks)).run(self._cluster)
            await self._think()

    async def _think(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, self._thinks_s))

    def _load(self, ask: Ask) -> Load:
        request_id = f"used-{uuid4().hex[:16]}"
        named = Ask(f"{ask.name} ({request_id})", ask.fields | {"request_id": request_id})
        load = Load([named], limit_s=self._limit_s)
        self.evidence.streams.append((load.records[0], self._truths[ask.name]))
        return load

    async def _talk(self) -> None:
        """A conversation after another, some turns sent before the one before was answered."""
        while not self._stopping:
            conversation = self._chance.choice(self._conversations)
            session_id = f"talk-{uuid4().hex[:12]}"
            names: list[str] = []
            self.evidence.sessions.append(names)
            async with asyncio.TaskGroup() as tasks:
                for turn in conversation.turns:
                    if self._stopping:
                        break
                    load = self._load(Ask(turn.name, turn.fields | {"session_id": session_id}))
                    names += [record.name for record in load.records]
                    task = tasks.create_task(load.run(self._cluster))
                    await load.until_accepted()  # until then their order is nobody's promise
                    if self._chance.random() < 0.5:
                        await task
                        await self._think()
                    else:
                        await asyncio.sleep(self._chance.uniform(0, _INTERRUPTS_S))

    # By hand.

    async def _write_by_hand(self) -> None:
        while not self._stopping:
            await self._listen(self._chance.choice(self._asks))
            await self._think()

    async def _listen(self, ask: Ask) -> None:
        """Publish it, again while nothing is heard, and note all that comes until a while after
        its end."""
        record = WireRecord(ask.name, f"hand-{uuid4().hex}", time.monotonic())
        self.evidence.wire.append((record, self._truths[ask.name]))
        heard = asyncio.Event()

        async def take(msg: Msg) -> None:
            if msg.data:  # else nobody takes requests now
                record.messages.append((time.monotonic(), json.loads(msg.data)))
                heard.set()

        inbox = self._plain.new_inbox()
        subscription = await self._plain.subscribe(inbox, cb=take)
        body = json.dumps({**ask.fields, "request_id": record.request_id}).encode()
        deadline = time.monotonic() + self._limit_s
        while not record.messages and time.monotonic() < deadline:
            record.published += 1
            await self._plain.publish("mlx.infer.local.chat", body, reply=inbox)
            await self._heard_soon(heard)
        while not record.ends and time.monotonic() < min(
            deadline, record.last_at + self._silence_s
        ):
            heard.clear()
            await self._heard_soon(heard)
        listening = asyncio.create_task(self._listen_on(subscription))
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)
        await asyncio.sleep(_LINGERS_S)

    async def _listen_on(self, subscription: Subscription) -> None:
        """A second end comes by then, or never."""
        await asyncio.sleep(_LISTENS_ON_S)
        await subscription.unsubscribe()

    async def _heard_soon(self, heard: asyncio.Event) -> None:
        """Return when something was heard, or the patience is at its end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await heard.wait()
