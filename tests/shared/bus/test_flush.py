"""Knowing that the server has everything, also where it takes its time."""

import asyncio

import pytest

from shared.bus import Bus, IncomingMessage
from shared.errors import BusError
from tests.access.roles import as_tester
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

_WAIT_S = 20


async def test_once_it_returns_the_server_has_what_was_published(
    own_bus: Bus, server: NatsProcess
) -> None:
    other = await Bus.connect(as_tester(server.url), name="other", wait_s=30)
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    await other.subscribe("t.x", messages.put)
    await other.flush(timeout_s=_WAIT_S)
    for _ in range(100):
        await own_bus.publish("t.x", b"")
    await own_bus.flush(timeout_s=_WAIT_S)
    await other.flush(timeout_s=_WAIT_S)
    assert messages.qsize() == 100
    await other.close()


async def test_many_at_once_each_return(own_bus: Bus) -> None:
    async with asyncio.timeout(_WAIT_S):
        await asyncio.gather(*(own_bus.flush(timeout_s=_WAIT_S) for _ in range(50)))


async def test_a_server_that_takes_too_long_is_told_and_afterwards_all_goes_on(
    own_bus: Bus, server: NatsProcess
) -> None:
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    await own_bus.subscribe("t.x", messages.put)
    await own_bus.flush(timeout_s=_WAIT_S)
    with server.stalled():
        await own_bus.publish("t.x", b"meanwhile")
        for _ in range(3):
            with pytest.raises(BusError, match=r"did not answer within 0\.05 s"):
                await own_bus.flush(timeout_s=0.05)
    await own_bus.flush(timeout_s=_WAIT_S)
    assert (await asyncio.wait_for(messages.get(), _WAIT_S)).payload == b"meanwhile"
    await own_bus.publish("t.x", b"afterwards")
    assert (await asyncio.wait_for(messages.get(), _WAIT_S)).payload == b"afterwards"
    assert own_bus.connections == 1


async def test_it_works_again_after_a_restart_and_each_connection_counts(
    own_bus: Bus, server: NatsProcess
) -> None:
    await own_bus.flush(timeout_s=_WAIT_S)
    assert own_bus.connections == 1
    for connections in (2, 3):
        server.kill()
        await asyncio.wait_for(own_bus.wait_lost(), _WAIT_S)
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(own_bus.wait_connected(), _WAIT_S)
        await own_bus.flush(timeout_s=_WAIT_S)
        assert own_bus.connections == connections


async def test_who_is_cancelled_just_when_the_answer_comes_is_cancelled(own_bus: Bus) -> None:
    """Else a task that flushes again and again, as heartbeats do, would never end."""
    await own_bus.flush(timeout_s=_WAIT_S)
    flushing = asyncio.create_task(own_bus.flush(timeout_s=_WAIT_S))
    for _ in range(3):
        await asyncio.sleep(0)
    (answered,) = own_bus._echoes.values()
    assert not answered.is_set()
    answered.set()
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
