"""What JetStream does for the leader's record: one key, written only after its last sequence."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from shared.bus import Subscription
from shared.bus.lease_store import LeaseEntry
from shared.errors import BusError, NoJetStream, WriteConflict
from tests.simulation.bus import SimulatedBus

_ANSWER_S = 0.002
_LATE_S = 0.3


class JetStream:
    """The record itself.

    Attributes:
        there: whether it answers; None where the servers have no JetStream at all.
        loses_answers: it does what it is told, and nobody hears of it.
        is_replaced: the record was lost or forged, once.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.is_replaced = False
        self.value = b""
        self.there: bool | None = True
        self.loses_answers = False
        self.hearing: list[tuple[SimulatedBus, Callable[[bytes], Awaitable[None]]]] = []

    def lose(self) -> None:
        """All that was kept, as with the disks of the servers: sequences begin anew."""
        self.sequence, self.value, self.is_replaced = 0, b"", True

    def write(self, value: bytes, after: int) -> int | None:
        """The new sequence; None where another one is there."""
        if after != self.sequence:
            return None
        self.sequence, self.value = self.sequence + 1, value
        self._tell(value)
        return self.sequence

    def _tell(self, value: bytes) -> None:
        for bus, handler in self.hearing:
            if bus.connected:
                bus.spawn(_called(handler, value))


class RecordStore:
    """One controller's way to it."""

    def __init__(self, jetstream: JetStream, bus: SimulatedBus) -> None:
        self._jetstream = jetstream
        self._bus = bus

    async def read(self, *, timeout_s: float) -> LeaseEntry:
        await self._reach(timeout_s)
        kept = LeaseEntry(self._jetstream.sequence, self._jetstream.value)
        await self._answer(timeout_s)
        return kept

    async def write(self, value: bytes, *, after: int, ttl_s: int, timeout_s: float) -> int:
        await self._reach(timeout_s)
        if self._jetstream.loses_answers:  # it may be done any time
            loop = asyncio.get_running_loop()
            loop.call_later(_LATE_S, self._jetstream.write, value, after)
            await asyncio.sleep(timeout_s)
            raise BusError("JetStream's answer was lost")
        sequence = self._jetstream.write(value, after)
        await self._answer(timeout_s)
        if sequence is None:
            raise WriteConflict("another one has written since")
        return sequence

    async def on_written(self, handler: Callable[[bytes], Awaitable[None]]) -> Subscription:
        self._jetstream.hearing.append((self._bus, handler))
        return cast(Subscription, _Nothing())

    async def _reach(self, timeout_s: float) -> None:
        if self._jetstream.there is None:
            raise NoJetStream("the NATS server has no JetStream")
        await asyncio.sleep(_ANSWER_S)
        if not self._jetstream.there or not self._bus.connected:
            await asyncio.sleep(timeout_s)
            raise BusError("JetStream does not answer")

    async def _answer(self, timeout_s: float) -> None:
        connection = self._bus.connections
        await asyncio.sleep(_ANSWER_S)
        if self._jetstream.loses_answers or connection != self._bus.connections:
            await asyncio.sleep(timeout_s)
            raise BusError("JetStream's answer was lost")


class _Nothing:
    async def unsubscribe(self) -> None: ...


async def _called(handler: Callable[[bytes], Awaitable[None]], value: bytes) -> None:
    await handler(value)
