"""What NATS may do to a connection, and what is still there afterwards."""

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from nats.aio.transport import TcpTransport

from shared.bus import Bus, Endpoint, IncomingMessage, MicroService
from shared.errors import NoResponders
from tests.access.roles import as_tester
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio


class Recovery:
    """Counts reconnects: every callback has run, every subscription is there again."""

    def __init__(self, bus: Bus) -> None:
        self._reconnected: asyncio.Queue[None] = asyncio.Queue()
        bus.on_reconnect.append(self._count)

    async def _count(self) -> None:
        self._reconnected.put_nowait(None)

    async def once(self) -> None:
        await asyncio.wait_for(self._reconnected.get(), 20)

    @property
    def more(self) -> int:
        return self._reconnected.qsize()


async def restart(server: NatsProcess, bus: Bus) -> None:
    server.kill()
    await asyncio.wait_for(bus.wait_lost(), 10)
    await asyncio.to_thread(server.start)


async def break_protocol(bus: Bus) -> None:
    """Make the server answer `-ERR 'Unknown Protocol Operation'`, which ends the client."""
    transport = bus._client._transport
    assert transport is not None
    transport.write(b"GARBAGE\r\n")
    await asyncio.wait_for(bus.wait_lost(), 10)


async def ask(server: NatsProcess, subject: str) -> bytes:
    """Ask on a connection of its own, as an outsider does."""
    outsider = await Bus.connect(as_tester(server.url), name="outsider", wait_s=10)
    try:
        return (await outsider.request(subject, b"", timeout_s=10)).payload
    finally:
        await outsider.close()


async def subscribe_echo(bus: Bus, subject: str, answer: bytes = b"here") -> None:
    async def handle(message: IncomingMessage) -> None:
        await bus.publish(message.reply, answer)

    await bus.subscribe(subject, handle)


@pytest.mark.parametrize("how", ["restart", "fatal error"])
async def test_what_was_subscribed_is_subscribed_again(
    how: str, server: NatsProcess, own_bus: Bus
) -> None:
    recovery = Recovery(own_bus)
    await subscribe_echo(own_bus, "t.echo")
    gone = await own_bus.subscribe("t.gone", lambda message: own_bus.publish("t.x", b""))
    await gone.unsubscribe()
    for _ in range(2):
        if how == "restart":
            await restart(server, own_bus)
        else:
            await break_protocol(own_bus)
        await recovery.once()
        assert own_bus.connected
        assert await ask(server, "t.echo") == b"here"
        assert (await own_bus.request("t.echo", b"", timeout_s=10)).payload == b"here"
        with pytest.raises(NoResponders):
            await own_bus.request("t.gone", b"", timeout_s=10)
    assert recovery.more == 0


async def test_losing_and_finding_the_server_is_told(server: NatsProcess, own_bus: Bus) -> None:
    await asyncio.wait_for(own_bus.wait_connected(), 30)
    lost = asyncio.create_task(own_bus.wait_lost())
    server.kill()
    await asyncio.wait_for(lost, 10)
    assert not own_bus.connected
    assert own_bus.server_url == ""
    found = asyncio.create_task(own_bus.wait_connected())
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(found, 20)
    assert own_bus.connected
    assert own_bus.server_url == server.url


async def test_what_is_subscribed_and_published_while_the_server_is_away_comes_through(
    server: NatsProcess, own_bus: Bus
) -> None:
    recovery = Recovery(own_bus)
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    server.kill()
    await asyncio.wait_for(own_bus.wait_lost(), 10)
    await own_bus.subscribe("t.late", messages.put)
    await own_bus.publish("t.late", b"buffered")
    await asyncio.to_thread(server.start)
    await recovery.once()
    assert (await asyncio.wait_for(messages.get(), 10)).payload == b"buffered"


async def test_what_is_subscribed_while_the_client_is_closed_is_there_after_the_rebuild(
    server: NatsProcess, own_bus: Bus
) -> None:
    recovery = Recovery(own_bus)
    await break_protocol(own_bus)
    assert not own_bus.connected
    await subscribe_echo(own_bus, "t.meanwhile")
    await recovery.once()
    assert await ask(server, "t.meanwhile") == b"here"


async def test_a_fatal_error_and_then_no_server_still_ends_in_a_connection(
    server: NatsProcess, own_bus: Bus
) -> None:
    recovery = Recovery(own_bus)
    await subscribe_echo(own_bus, "t.echo")
    await break_protocol(own_bus)
    server.kill()
    await asyncio.to_thread(server.start)
    await recovery.once()
    assert (await own_bus.request("t.echo", b"", timeout_s=10)).payload == b"here"


async def test_a_micro_service_answers_once_after_a_rebuild(
    server: NatsProcess, own_bus: Bus
) -> None:
    recovery = Recovery(own_bus)
    service = MicroService(
        name="mlx-test",
        version="1.2.3",
        description="a test",
        metadata={"id": "t1"},
        endpoints=(Endpoint("health", "t.health", "t1", lambda: b"fine"),),
    )
    await own_bus.serve(service)
    for _ in range(2):
        assert (await own_bus.request("t.health", b"", timeout_s=10)).payload == b"fine"
        answers = await own_bus.request_many("$SRV.INFO.mlx-test", b"", wait_s=0.5)
        infos = [json.loads(answer.payload) for answer in answers]
        assert [(info["version"], info["metadata"]["id"]) for info in infos] == [("1.2.3", "t1")]
        assert infos[0]["endpoints"][0]["subject"] == "t.health"
        await break_protocol(own_bus)
        await recovery.once()


async def test_a_bus_that_is_closed_while_it_rebuilds_stays_closed(
    server: NatsProcess, own_bus: Bus
) -> None:
    recovery = Recovery(own_bus)
    await subscribe_echo(own_bus, "t.echo")
    assert await ask(server, "t.echo") == b"here"
    await break_protocol(own_bus)
    await own_bus.close()
    with pytest.raises(NoResponders):
        await ask(server, "t.echo")
    assert not own_bus.connected
    assert recovery.more == 0


async def test_what_is_sent_while_the_connection_breaks_goes_out_with_the_next(
    nats_server: NatsProcess, bus: Bus
) -> None:
    """The client's flusher is gone and its reader has not noticed: it writes by itself."""
    recovery = Recovery(bus)
    client = bus._client
    assert client._flusher_task is not None
    client._flusher_task.cancel()
    await asyncio.wait([client._flusher_task])
    client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
    heard: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    subscription = await bus.subscribe("t.breaking", heard.put)
    await bus.publish("t.breaking", b"kept")
    assert bus.connected  # it has not noticed yet, or this shows nothing
    await recovery.once()
    assert (await asyncio.wait_for(heard.get(), 10)).payload == b"kept"
    await subscription.unsubscribe()


async def test_a_bus_without_a_server_closes_with_something_unsent(server: NatsProcess) -> None:
    bus = await Bus.connect(as_tester(server.url), name="unsent", wait_s=30)
    server.kill()
    await asyncio.wait_for(bus.wait_lost(), 10)
    await bus.publish("unsent", b"x")
    await bus.close()
    assert not bus.connected


async def test_a_bus_that_is_closed_while_it_reconnects_leaves_no_task_behind(
    server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its cancellation comes together with a connection, and is forgotten."""
    bus = await Bus.connect(as_tester(server.url), name="leaving", wait_s=30)
    connecting, forgotten = asyncio.Event(), asyncio.Event()

    async def connect(*_: object, **__: object) -> None:
        connecting.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if forgotten.is_set():
                raise
            forgotten.set()  # as `asyncio.wait_for` does up to Python 3.11
        raise ConnectionRefusedError

    before = asyncio.all_tasks()
    monkeypatch.setattr(TcpTransport, "connect", connect)
    server.kill()
    await asyncio.wait_for(connecting.wait(), 10)
    await bus.close()
    monkeypatch.undo()
    assert forgotten.is_set()
    assert bus._client.is_closed
    assert "_attempt_reconnect" not in str(asyncio.all_tasks() - before)


async def hang_up(_: asyncio.StreamReader) -> None:
    """Say that TLS is wanted, and no more."""


async def never_shake_hands(reader: asyncio.StreamReader) -> None:
    """Return once the client has gone."""
    with contextlib.suppress(ConnectionError):
        await reader.read()


class Broken:
    """A server that lets nobody in.

    Args:
        answer: what it does when it has asked for TLS; then it closes the connection.
    """

    def __init__(self, answer: Callable[[asyncio.StreamReader], Awaitable[None]]) -> None:
        self.tried: asyncio.Queue[None] = asyncio.Queue()
        self._answer = answer
        self._connections: set[asyncio.Task[None] | None] = set()

    @contextlib.asynccontextmanager
    async def listening(self, port: int | None) -> AsyncIterator[None]:
        """At the end every connection must end by what the client does."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", port):
            yield
            async with asyncio.timeout(10):
                await asyncio.gather(*filter(None, self._connections))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.current_task())
        self.tried.put_nowait(None)
        writer.write(b'INFO {"server_id":"x","version":"2.12.0","tls_required":true}\r\n')
        await self._answer(reader)
        writer.close()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is given up at once."""
    monkeypatch.setattr("shared.bus.options.CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr("shared.bus.bus.CONNECT_TIMEOUT_S", 0.1)


@pytest.mark.parametrize("answer", [hang_up, never_shake_hands])
@pytest.mark.usefixtures("hurried")
async def test_attempts_to_reconnect_that_fail_leave_no_socket_open(
    server: NatsProcess, answer: Callable[[asyncio.StreamReader], Awaitable[None]]
) -> None:
    bus = await Bus.connect(as_tester(server.url), name="patient", wait_s=30)
    server.kill()
    broken = Broken(answer)
    async with broken.listening(urlsplit(server.url).port):
        for _ in range(3):
            await asyncio.wait_for(broken.tried.get(), 10)
        await asyncio.wait_for(bus.close(), 10)
    gc.collect()  # which warns of each, and that fails the test
