"""One request of a client: published, listened to, and given up when nothing is heard."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import orjson

from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.client.assembler import Assembler
from shared.errors import DecodeError, StreamSilent, Unavailable
from shared.ids import ClientName, RequestId, SkillName, WorkerId
from shared.messages.stream import ChoiceOutput, StatusName, Timings, Usage, decode

REPUBLISH_AFTER_S = 1.0
SILENCE_LIMIT_S = 8.0
DISCONNECTED_LIMIT_S = 5.0
_NO_CONTROLLER_LIMIT_S = 2.0
_NO_CONTROLLER_RETRY_S = 0.25


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `text` and `token_ids` are those of the first choice."""

    request_id: RequestId
    worker: WorkerId | None
    choices: tuple[ChoiceOutput, ...]
    usage: Usage
    timings: Timings

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason


class Stream:
    """The answer to one request as it comes: iterate over it once.

    Leaving early (`break` inside `async with`, or `aclose`) cancels the request.

    Raises while iterating:
        StreamFailed: the request ended in an error; code, param and retryable tell which.
        StreamSilent: nothing was heard for 8 s, or the connection is gone for 5 s.
        Unavailable: no controller takes requests.
    """

    def __init__(
        self,
        bus: Bus,
        client: ClientName,
        skill: SkillName,
        request_id: RequestId,
        payload: bytes,
        *,
        first_index: int = 0,
    ) -> None:
        self._bus = bus
        self._client = client
        self._skill = skill
        self._payload = payload
        self._assembler = Assembler(request_id, first_index=first_index)
        self._arrived: asyncio.Queue[Message] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._chunks = self._run()

    @property
    def request_id(self) -> RequestId:
        return self._assembler.request_id

    @property
    def status(self) -> StatusName | None:
        return self._assembler.status

    @property
    def progress(self) -> float | None:
        return self._assembler.progress

    @property
    def seed(self) -> int | None:
        return self._assembler.seed

    @property
    def worker(self) -> WorkerId | None:
        return self._assembler.worker

    @property
    def usage(self) -> Usage | None:
        """Set at the end."""
        return self._assembler.usage

    @property
    def timings(self) -> Timings | None:
        """Set at the end."""
        return self._assembler.timings

    def __aiter__(self) -> AsyncIterator[ChoiceOutput]:
        return self._chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening; cancels the request unless it has ended."""
        await self._chunks.aclose()

    async def collect(self) -> Completion:
        """The whole answer.

        Raises: as iterating does.
        """
        parts: dict[int, list[ChoiceOutput]] = {}
        async with self:
            async for chunk in self:
                parts.setdefault(chunk.choice, []).append(chunk)
        assert self.usage is not None and self.timings is not None
        return Completion(
            request_id=self.request_id,
            worker=self.worker,
            choices=tuple(ChoiceOutput.joined(parts[choice]) for choice in sorted(parts)),
            usage=self.usage,
            timings=self.timings,
        )

    async def _run(self) -> AsyncGenerator[ChoiceOutput, None]:
        self._inbox = self._bus.new_inbox()
        self._subscription = await self._bus.subscribe(self._inbox, self._arrived.put)
        try:
            await self._publish()
            while not self._assembler.done:
                for chunk in await self._next():
                    yield chunk
        finally:
            await self._leave()

    async def _publish(self) -> None:
        subject = subjects.infer(self._client, self._skill)
        await self._bus.publish(subject, self._payload, reply=self._inbox)

    async def _next(self) -> list[ChoiceOutput]:
        """Wait for the next message and take it in."""
        silent_since = time.monotonic()
        while True:
            patience_s = SILENCE_LIMIT_S if self._assembler.heard else REPUBLISH_AFTER_S
            try:
                message = await asyncio.wait_for(self._arrived.get(), patience_s)
            except TimeoutError:
                self._give_up_if_silent(time.monotonic() - silent_since)
                await self._publish()  # same id and body: a controller knows it, or takes it
                continue
            if message.no_responders:
                if time.monotonic() - silent_since > _NO_CONTROLLER_LIMIT_S:
                    raise Unavailable(
                        f"no controller takes requests at {self._bus.server_url}; "
                        "is `controller` running?",
                        code="no_controller",
                    )
                await asyncio.sleep(_NO_CONTROLLER_RETRY_S)
                await self._publish()
                continue
            return self._take(message)

    def _take(self, message: Message) -> list[ChoiceOutput]:
        try:
            messages = decode(message.payload)
        except DecodeError:
            return []  # not of this cluster; silence rules apply
        return [chunk for one in messages for chunk in self._assembler.take(one)]

    def _give_up_if_silent(self, silent_s: float) -> None:
        if not self._bus.connected and silent_s >= DISCONNECTED_LIMIT_S:
            raise StreamSilent("the connection to NATS is gone", code="disconnected")
        if silent_s >= SILENCE_LIMIT_S:
            raise StreamSilent(f"nothing was heard of {self.request_id} for {silent_s:.0f} s")

    async def _leave(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        if not self._assembler.done and self._bus.connected:
            query = orjson.dumps({"request_id": self.request_id})
            await self._bus.publish(subjects.request(self._client, "cancel"), query)
