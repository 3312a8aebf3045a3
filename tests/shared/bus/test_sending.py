"""What is sent at once, without a wait: in order, and never later."""

import asyncio

import pytest

from shared.bus import Bus, IncomingMessage
from shared.errors import BusError, PayloadTooLarge
from shared.settings.nats import NatsSettings
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

_WAIT_S = 20


async def _collect(bus: Bus, subject: str) -> asyncio.Queue[IncomingMessage]:
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    await bus.subscribe(subject, messages.put)
    return messages


async def _next_of(messages: asyncio.Queue[IncomingMessage]) -> IncomingMessage:
    return await asyncio.wait_for(messages.get(), _WAIT_S)


async def test_a_message_arrives_with_its_subject_reply_and_bytes(bus: Bus) -> None:
    messages = await _collect(bus, "t.*")
    bus.send("t.one", b"hello", reply="_INBOX.x")
    bus.send("t.two", b"")
    assert await _next_of(messages) == IncomingMessage("t.one", "_INBOX.x", b"hello")
    assert await _next_of(messages) == IncomingMessage("t.two", "", b"")


async def test_that_nobody_hears_it_is_told_to_its_inbox(bus: Bus) -> None:
    inbox = bus.new_inbox()
    messages = await _collect(bus, inbox)
    bus.send("t.nobody", b"", reply=inbox)
    assert (await _next_of(messages)).no_responders


async def test_what_is_sent_and_what_is_published_keep_their_order(bus: Bus) -> None:
    messages = await _collect(bus, "t.mixed")
    for number in range(0, 100, 2):
        bus.send("t.mixed", b"%d" % number)
        await bus.publish("t.mixed", b"%d" % (number + 1))
    told = [int((await _next_of(messages)).payload) for _ in range(100)]
    assert told == list(range(100))


async def test_much_is_sent_at_once_and_all_of_it_arrives(bus: Bus) -> None:
    """More than the buffer with which `publish` waits for the server."""
    messages = await _collect(bus, "t.much")
    large = b"x" * 2**16
    for number in range(100):
        bus.send("t.much", b"%3d" % number + large)
    told = [int((await _next_of(messages)).payload[:3]) for _ in range(100)]
    assert told == list(range(100))


async def test_more_than_the_server_takes_is_refused_and_the_connection_stays(bus: Bus) -> None:
    payload = b"x" * (bus.max_payload + 1)
    with pytest.raises(PayloadTooLarge) as caught:
        bus.send("t.big", payload)
    assert str(len(payload)) in caught.value.message
    assert str(bus.max_payload) in caught.value.message
    messages = await _collect(bus, "t.big")
    bus.send("t.big", payload[1:])
    assert len((await _next_of(messages)).payload) == bus.max_payload
    assert bus.connections == 1


async def test_without_a_connection_it_is_refused_and_does_not_go_out_later(
    own_bus: Bus, server: NatsProcess
) -> None:
    messages = await _collect(own_bus, "t.x")
    server.kill()
    await asyncio.wait_for(own_bus.wait_lost(), _WAIT_S)
    with pytest.raises(BusError, match=r"publish to t\.x: there is no connection"):
        own_bus.send("t.x", b"before")
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(own_bus.wait_connected(), _WAIT_S)
    own_bus.send("t.x", b"after")
    assert (await _next_of(messages)).payload == b"after"


async def test_a_closed_bus_sends_nothing(nats_settings: NatsSettings) -> None:
    closed = await Bus.connect(nats_settings, name="t", wait_s=30)
    await closed.close()
    with pytest.raises(BusError, match="there is no connection"):
        closed.send("t.x", b"")
