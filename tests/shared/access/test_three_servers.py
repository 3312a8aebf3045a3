"""Three servers that are one: any one of them may be lost."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from controller.service import Controller
from shared import subjects
from shared.access.folder import AccessFolder, new_listening
from shared.access.server_folder import CONFIG_NAME
from shared.bus import Bus, LeaseStore
from shared.codec import decode
from shared.errors import BusError, SettingsError
from shared.ids import ControllerId
from shared.logs import BusLogHandler
from shared.messages.controller_report import LeaseRecord
from shared.service import StopSignal
from shared.settings import ClusterSettings
from tests.access.members import nats_of
from tests.processes import wait_until
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
    """The server that leads the bucket of the record; empty where nobody says."""
    question = subjects.jetstream("INFO", subjects.LEADER_BUCKET)
    try:
        answer = json.loads((await bus.request(question, b"", timeout_s=1)).payload)
    except BusError:
        return ""
    return str(answer.get("cluster", {}).get("leader", ""))


@contextlib.asynccontextmanager
async def running(bus: Bus, name: str) -> AsyncIterator[Controller]:
    """A controller on this connection, ended in haste."""
    settings = ClusterSettings.model_validate({"skills": {"chat": ["demo"]}})
    controller_id = ControllerId(name)
    controller = Controller(
        settings, bus, controller_id, BusLogHandler("controller", controller_id)
    )
    stop = StopSignal()
    life = asyncio.create_task(controller.run(stop))
    try:
        yield controller
    finally:
        stop.request(immediate=True)
        await life


async def test_one_leads_also_when_the_server_is_gone_that_leads_the_bucket_of_its_record(
    servers: ThreeServers, buses: list[Bus]
) -> None:
    store = LeaseStore(buses[0], subjects.LEADER_BUCKET, subjects.LEADER_KEY)
    async with AsyncExitStack() as stack, asyncio.timeout(3 * PATIENCE_S):
        lives = [running(bus, f"c-{n}") for n, bus in enumerate(buses, 1)]
        controllers = [await stack.enter_async_context(life) for life in lives]
        await one_leads(controllers)
        lost = await leader_of(buses[0])
        assert lost in ADDRESSES
        before = await store.read(timeout_s=30)
        await asyncio.to_thread(servers.kill, lost)
        after = await written_after(before.sequence, store)
        assert after.term >= decode(LeaseRecord, before.value).term
        await one_leads(controllers)


async def written_after(sequence: int, store: LeaseStore) -> LeaseRecord:
    """The record of the leader, once it was written again."""
    while True:
        with contextlib.suppress(BusError):
            kept = await store.read(timeout_s=1)
            if kept.sequence > sequence and kept.value:
                return decode(LeaseRecord, kept.value)
        await asyncio.sleep(0.1)


async def one_leads(controllers: list[Controller]) -> None:
    """Return once one of them leads, and no other one takes itself for the leader."""

    async def leads() -> bool:
        return sum(controller.report().leader for controller in controllers) == 1

    await wait_until(leads)


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
        assert (
            len(config["accounts"]["cluster"]["users"]) == 1 and config["cluster"]["tls"]["verify"]
        )
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
