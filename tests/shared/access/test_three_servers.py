"""Three servers that are one: any one of them may be lost."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from controller.lease import Lease
from shared import subjects
from shared.access.folder import AccessFolder, new_listening
from shared.access.server_folder import CONFIG_NAME
from shared.bus import Bus, LeaseStore
from shared.errors import BusError, SettingsError
from shared.ids import BootId, ControllerId
from tests.access.members import nats_of
from tests.three_servers import ADDRESSES, ThreeServers

pytestmark = pytest.mark.anyio

NOW = "2026-11-24T12:00:00Z"
PATIENCE_S = 40.0


@pytest.fixture
def servers(tmp_path: Path, stack: ExitStack) -> ThreeServers:
    return ThreeServers(tmp_path, stack)


@pytest.fixture
async def buses(servers: ThreeServers, tmp_path: Path) -> AsyncIterator[list[Bus]]:
    """Of two controllers, once all servers are there."""
    with servers.access.changing():
        members = [servers.access.add("controller", f"c-{n}", now=NOW) for n in (1, 2)]
    servers.start(*ADDRESSES)
    async with AsyncExitStack() as stack:
        connected = []
        for member in members:
            prefix = subjects.inbox_prefix("controller", member.name)
            nats = nats_of(member, tmp_path)
            bus = await Bus.connect(nats, name=member.name, inbox_prefix=prefix, wait_s=20)
            stack.push_async_callback(bus.close)
            connected.append(bus)
        yield connected


async def leader_of(bus: Bus) -> str:
    """The server that leads the bucket of the lease; empty where nobody says."""
    question = subjects.jetstream("INFO", subjects.LEADER_BUCKET)
    try:
        answer = json.loads((await bus.request(question, b"", timeout_s=1)).payload)
    except BusError:
        return ""
    return str(answer.get("cluster", {}).get("leader", ""))


async def test_the_lease_outlives_the_server_that_leads_its_bucket(
    servers: ThreeServers, buses: list[Bus]
) -> None:
    leases = [
        Lease(bus, ControllerId(f"c-{n}"), BootId(f"b-{n}"), ttl_s=10)
        for n, bus in enumerate(buses, 1)
    ]
    store = LeaseStore(buses[0], subjects.LEADER_BUCKET, subjects.LEADER_KEY)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(3 * PATIENCE_S):
        running = [tasks.create_task(lease.run()) for lease in leases]
        await one_holds(leases)
        lost = await leader_of(buses[0])
        assert lost in ADDRESSES
        before = await store.look(timeout_s=30)
        await asyncio.to_thread(servers.kill, lost)
        await written_after(before.sequence, store)
        await one_holds(leases)
        for task in running:
            task.cancel()


async def written_after(sequence: int, store: LeaseStore) -> None:
    while True:
        with contextlib.suppress(BusError):
            if (await store.look(timeout_s=1)).sequence > sequence:
                return
        await asyncio.sleep(0.1)


async def one_holds(leases: list[Lease]) -> None:
    waiting = [asyncio.ensure_future(lease.wait_until(True)) for lease in leases]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    assert sum(lease.holds for lease in leases) == 1


def test_each_server_has_what_it_needs_and_no_secret_of_others(tmp_path: Path) -> None:
    names = ["mac-1.local", "mac-2.local", "192.168.1.9"]
    access = AccessFolder.create(tmp_path / "access", new_listening(names=names, route_port=6222))
    with access.changing():
        member = access.add("worker", "w", now=NOW)
    assert member.servers == [f"tls://{name}:4222" for name in names]
    keys = set()
    for server in access.servers:
        assert {path.name for path in server.path.iterdir()} == {
            "authority.crt", "nats-server.json", "server.crt", "server.key"
        }  # fmt: skip
        keys.add((server.path / "server.key").read_bytes())
        text = (server.path / CONFIG_NAME).read_text()
        assert str(tmp_path) not in text and member.seed not in text
        config = json.loads(text)
        assert config["server_name"] == server.names[0]
        assert config["cluster"]["routes"] == [
            f"nats-route://{name}:6222" for name in names if name != server.names[0]
        ]
        assert len(config["authorization"]["users"]) == 1 and config["cluster"]["tls"]["verify"]
    assert len(keys) == 3
    with access.changing():
        access.renew_server(["mac-1.local", "mac-2.local", "mac-4.local"])
    assert {path.name for path in (access.path / "servers").iterdir()} == {
        "mac-1.local", "mac-2.local", "mac-4.local"
    }  # fmt: skip


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "a"]])
def test_of_two_none_could_be_lost(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="3 servers at least"):
        new_listening(names=names, route_port=6222)
    access = AccessFolder.create(
        tmp_path / "access", new_listening(names=["a", "b", "c"], route_port=6222)
    )
    with pytest.raises(SettingsError, match="3 servers at least"), access.changing():
        access.renew_server(names)
