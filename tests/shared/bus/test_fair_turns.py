"""A subscription with a long backlog does not keep all others from their turn."""

import asyncio
import time

import pytest

from shared.bus import Bus, IncomingMessage

pytestmark = pytest.mark.anyio

_WAIT_S = 60
_MANY = 2000
_WORK_S = 0.001


class Backlog:
    """Many messages wait when the first one is handled; a timer is set then, and a message goes to
    another subscription. `log` says in which order they had their turn."""

    def __init__(self, bus: Bus) -> None:
        self.log: list[str] = []
        self._bus = bus
        self._may_begin = asyncio.Event()
        self._done = asyncio.Event()

    async def run(self) -> None:
        await self._bus.subscribe("t.long", self._on_long)
        await self._bus.subscribe("t.other", self._on_other)
        for _ in range(_MANY):
            await self._bus.publish("t.long", b"")
        await self._bus.flush(timeout_s=_WAIT_S)  # all are here
        self._may_begin.set()
        await asyncio.wait_for(self._done.wait(), _WAIT_S)

    async def _on_long(self, _: IncomingMessage) -> None:
        await self._may_begin.wait()
        if not self.log:
            self._bus.send("t.other", b"")
            asyncio.get_running_loop().call_later(0, self.log.append, "timer")
        self.log.append("long")
        if not {"timer", "other"} <= set(self.log):
            time.sleep(_WORK_S)  # noqa: ASYNC251 - it computes, and waits for nothing
        if self.log.count("long") == _MANY:
            self._done.set()

    async def _on_other(self, _: IncomingMessage) -> None:
        self.log.append("other")


async def test_timers_and_other_subscriptions_have_their_turn_within_a_long_backlog(
    bus: Bus,
) -> None:
    backlog = Backlog(bus)
    await backlog.run()
    assert backlog.log.count("long") == _MANY
    for other in ("timer", "other"):
        assert 0 < backlog.log.index(other) < _MANY, backlog.log[-3:]


async def test_within_one_subscription_the_order_stays(bus: Bus) -> None:
    told: list[int] = []
    ended = asyncio.Event()

    async def take(message: IncomingMessage) -> None:
        number = int(message.payload)
        told.append(number)
        if number % 10 == 0:
            time.sleep(0.011)  # noqa: ASYNC251 - so long that others have their turn
        if number == 99:
            ended.set()

    await bus.subscribe("t.ordered", take)
    for number in range(100):
        await bus.publish("t.ordered", b"%d" % number)
    await asyncio.wait_for(ended.wait(), _WAIT_S)
    assert told == list(range(100))
