"""Each client has a NATS account of its own: what crosses it, and what one key may take."""

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from shared import subjects
from shared.access.folder import AccessFolder, ServerAddresses
from shared.access.member_credentials import MemberCredentials
from shared.access.nats_accounts import CLIENT_CONNECTIONS
from shared.access.roles import ROLES, Role
from shared.access.server_folder import CONFIG_NAME
from shared.bus import Bus
from shared.bus.subscription import IncomingMessage
from shared.errors import BusError, BusUnreachable, NoResponders
from shared.settings.nats import NatsSettings
from tests.access.members import nats_of
from tests.processes import NatsProcess, wait_until
from tests.raw_nats import RawConnection
from tests.three_servers import ADDRESSES, ThreeServers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

NOW = "2026-11-29T12:00:00Z"
TOO_MANY = b"-ERR 'maximum account active connections exceeded'\r\n"
INFER = "mlx.infer.{}.chat"
ANSWER = 3
"""Messages of an answer."""
FLOOD, AT_ONCE = 80, 8
"""Connections that one key opens one after another, and how many times at once."""
SOCKETS = 1500
"""Sockets without a key."""


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Sockets of both ends are files of this process and of the server that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Site:
    """A server of an access folder, and who is in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self.access = AccessFolder.create(
            folder / "access", ServerAddresses(names=["127.0.0.1", "localhost"])
        )
        self._server = NatsProcess(folder, secured=False)

    def add(self, role: Role, name: str, max_connections: int | None = None) -> MemberCredentials:
        with self.access.changing():
            return self.access.add(role, name, now=NOW, max_connections=max_connections)

    def start(self) -> None:
        config = json.loads((self.access.path / CONFIG_NAME).read_text())
        self._server.more = config | {"port": -1}
        self._server.start()

    def reload(self) -> None:
        """Let the server read the users that are known now, and return once it has."""
        config = json.loads((self.access.path / CONFIG_NAME).read_text())
        self._server.reload(config | {"port": int(self._server.url.rpartition(":")[2])})

    def nats(self, member: MemberCredentials) -> NatsSettings:
        return nats_of(member, self._folder, self._server.url.replace("nats://", "tls://"))

    async def connect(self, member: MemberCredentials, wait_s: float = 20) -> Bus:
        return await self._stack.enter_async_context(connected(member, self.nats(member), wait_s))

    async def close(self) -> None:
        await self._stack.aclose()
        self._server.kill()


@contextlib.asynccontextmanager
async def connected(
    member: MemberCredentials, nats: NatsSettings, wait_s: float = 20
) -> AsyncIterator[Bus]:
    prefix = subjects.inbox_prefix(member.role, member.name)
    bus = await Bus.connect(nats, name=member.name, inbox_prefix=prefix, wait_s=wait_s)
    yield bus
    await bus.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    yield site
    await site.close()


async def answer(bus: Bus, heard: list[IncomingMessage]) -> None:
    """Answer requests of all clients with some messages, as workers do."""

    async def on_request(message: IncomingMessage) -> None:
        heard.append(message)
        for number in range(ANSWER):
            await bus.publish(message.reply, b"%d" % number)

    await bus.subscribe(subjects.INFER_ALL, on_request)
    await bus.flush()


async def test_streams_cross_the_accounts_with_the_inbox_that_the_client_named(site: Site) -> None:
    members = [site.add("controller", "c"), site.add("client", "ada")]
    site.start()
    controller, ada = [await site.connect(member) for member in members]
    heard: list[IncomingMessage] = []
    await answer(controller, heard)
    told: list[bytes] = []
    whole = asyncio.Event()

    async def on_message(message: IncomingMessage) -> None:
        told.append(message.payload)
        if len(told) == ANSWER:
            whole.set()

    inbox = ada.new_inbox()
    stream = await ada.subscribe(inbox, on_message)
    await ada.flush()
    await ada.publish(INFER.format("ada"), b"", reply=inbox)
    await asyncio.wait_for(whole.wait(), 20)
    assert told == [b"%d" % number for number in range(ANSWER)]
    assert [(one.subject, one.reply) for one in heard] == [(INFER.format("ada"), inbox)]
    # When the client has left, the next message to its inbox has no responders.
    await stream.unsubscribe()
    await ada.flush()
    with pytest.raises(NoResponders):
        await controller.request(inbox, b"", timeout_s=20)
    # And a client that nobody serves hears so.
    with pytest.raises(NoResponders):
        await ada.request("mlx.health.cluster", b"", timeout_s=20)


async def test_a_client_may_not_speak_for_another_nor_hear_it(site: Site) -> None:
    members = [site.add("controller", "c"), site.add("client", "ada"), site.add("client", "eve")]
    site.start()
    controller, ada, eve = [await site.connect(member) for member in members]
    heard: list[IncomingMessage] = []
    await answer(controller, heard)
    for subject in (INFER.format("ada"), "_INBOX.ada.x", "mlx.event.worker.w", "$JS.API.INFO"):
        await eve.publish(subject, b"")
    with pytest.raises(BusError):
        await eve.request(INFER.format("ada"), b"", timeout_s=20)
    await ada.request(INFER.format("ada"), b"from ada", timeout_s=20)
    assert [message.payload for message in heard] == [b"from ada"]


async def test_a_client_has_a_limit_of_connections_and_others_are_not_part_of_it(
    site: Site,
) -> None:
    eve, ada = site.add("client", "eve", max_connections=2), site.add("client", "ada")
    site.start()
    first, second = await site.connect(eve), await site.connect(eve)
    with pytest.raises(BusUnreachable, match=r"as many connections as it may.*cluster auth limit"):
        await site.connect(eve, wait_s=0)
    await site.connect(ada)
    # Another key of the same client counts, too; a connection that ends makes room.
    with site.access.changing():
        rotated = site.access.rotate("client", "eve")
    site.reload()
    with pytest.raises(BusUnreachable, match="as many connections"):
        await site.connect(rotated, wait_s=0)
    assert first.connections == second.connections == 1, "who was in stayed"
    await first.close()
    third = await site.connect(rotated)
    with site.access.changing():
        site.access.limit("client", "eve", 3)
    site.reload()
    await site.connect(eve)
    assert second.connections == third.connections == 1


async def test_one_key_that_floods_the_server_with_connections_keeps_nobody_out(
    site: Site,
) -> None:
    eve = site.add("client", "eve")
    members = [*(site.add(role, "x") for role in ROLES), site.add("client", "ada")]
    site.start()
    controller, ada = await site.connect(members[ROLES.index("controller")]), members[-1]
    await answer(controller, [])
    asking = await site.connect(ada)
    said: list[bytes] = []

    async def flood(connections: AsyncExitStack) -> None:
        for _ in range(FLOOD):
            line = b""
            with contextlib.suppress(OSError):  # refused, and reset before it could be read
                connection = await connections.enter_async_context(RawConnection(site.nats(eve)))
                connection.send(b"PING\r\n")
                line = await connection.line()
            said.append(line)

    async with AsyncExitStack() as connections, asyncio.TaskGroup() as group:
        floods = [group.create_task(flood(connections)) for _ in range(AT_ONCE)]
        while not all(one.done() for one in floods):
            await asking.request(INFER.format("ada"), b"", timeout_s=20)
            for member in members:
                await (await site.connect(member)).close()
        assert 0 < said.count(b"PONG\r\n") <= CLIENT_CONNECTIONS
        assert set(said) <= {b"PONG\r\n", TOO_MANY, b""} and TOO_MANY in said
        assert asking.connections == controller.connections == 1


async def test_sockets_without_a_key_keep_nobody_out(site: Site) -> None:
    members = [site.add("worker", "w"), site.add("client", "ada")]
    site.start()
    host, port = "127.0.0.1", int(site.nats(members[0]).servers[0].rpartition(":")[2])
    sockets = await asyncio.gather(*(asyncio.open_connection(host, port) for _ in range(SOCKETS)))
    for member in members:
        await (await site.connect(member)).flush()
    # Nor do they stay.
    assert all(b"-ERR" not in line for line in await _first_lines(sockets))
    for reader, writer in sockets:
        await asyncio.wait_for(reader.read(), 60)
        writer.close()


async def test_who_is_added_disconnects_nobody_and_finds_all_servers_ready(
    tmp_path: Path, stack: ExitStack
) -> None:
    """Of three servers, where an account that a reload adds would stay deaf at some of them."""
    servers = ThreeServers(tmp_path, stack)
    with servers.access.changing():
        controller = servers.access.add("controller", "c", now=NOW)
        ada = servers.access.add("client", "ada", now=NOW)
    servers.start(*ADDRESSES)
    urls = [url.replace("localhost", "127.0.0.1") for url in controller.servers]
    async with AsyncExitStack() as buses:
        serving = await buses.enter_async_context(
            connected(controller, nats_of(controller, tmp_path, urls[0]))
        )
        asking = await buses.enter_async_context(connected(ada, nats_of(ada, tmp_path, urls[1])))
        await answer(serving, [])
        await wait_until(lambda: _is_served(asking, "ada"))
        with servers.access.changing():
            eve = servers.access.add("client", "eve", now=NOW)
        servers.reload(*ADDRESSES)
        for url in urls:
            new = await buses.enter_async_context(connected(eve, nats_of(eve, tmp_path, url)))
            await wait_until(lambda new=new: _is_served(new, "eve"))  # type: ignore[misc]
        assert await _is_served(asking, "ada")
        assert asking.connections == serving.connections == 1
        # Whoever asks at another server than the controller's hears when it has left.
        await serving.close()

        async def is_alone() -> bool:
            try:
                await asking.request(INFER.format("ada"), b"", timeout_s=1)
            except NoResponders:
                return True
            except BusError:
                return False
            return False

        await wait_until(is_alone)


async def _is_served(bus: Bus, client: str) -> bool:
    try:
        return (await bus.request(INFER.format(client), b"", timeout_s=1)).payload == b"0"
    except BusError:
        return False


async def _first_lines(
    sockets: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
) -> list[bytes]:
    return [await asyncio.wait_for(reader.readline(), 60) for reader, _ in sockets]
