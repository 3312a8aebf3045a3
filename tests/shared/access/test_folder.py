"""The folder of `cluster auth`: who is in it gets in, over TLS, and nobody else."""

import asyncio
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from shared.access.certificates import new_authority, new_server
from shared.access.folder import AccessFolder, ServerAddresses
from shared.access.member_credentials import MemberCredentials
from shared.access.nats_accounts import CLIENT_CONNECTIONS
from shared.access.server_folder import CONFIG_NAME
from shared.bus import Bus
from shared.errors import BusUnreachable, SettingsError
from shared.settings.nats import NatsSettings
from tests.access.members import nats_of
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

NOW = "2026-11-23T12:00:00Z"


@pytest.fixture
def folder(tmp_path: Path) -> AccessFolder:
    return AccessFolder.create(
        tmp_path / "access", ServerAddresses(names=["127.0.0.1", "localhost"])
    )


@pytest.fixture
def server(tmp_path: Path, folder: AccessFolder) -> Iterator[NatsProcess]:
    """Of that folder; `start` it where its users are there."""
    server = NatsProcess(tmp_path, secured=False)
    yield server
    server.kill()


def start(server: NatsProcess, folder: AccessFolder) -> None:
    server.more = json.loads((folder.path / CONFIG_NAME).read_text()) | {"port": -1}
    server.start()


def settings(server: NatsProcess, member: MemberCredentials, tmp_path: Path) -> NatsSettings:
    return nats_of(member, tmp_path, server.url.replace("nats://", "tls://"))


async def gets_in(nats: NatsSettings) -> bool:
    try:
        bus = await Bus.connect(nats, name="test", inbox_prefix="_INBOX.alice", wait_s=0.5)
    except BusUnreachable:
        return False
    await bus.flush()
    await bus.close()
    return True


async def test_who_is_in_it_gets_in_and_nobody_else(
    server: NatsProcess, folder: AccessFolder, tmp_path: Path
) -> None:
    with folder.changing():
        alice = folder.add("client", "alice", now=NOW)
    start(server, folder)
    known = settings(server, alice, tmp_path)
    assert await gets_in(known)
    plain = NatsSettings(servers=[server.url])
    assert not await gets_in(plain)
    for change in (
        {"nkey_seed_file": None},
        {"nkey_seed_file": None, "token": SecretStr("secret")},
        {"tls": None},  # knows no authority
    ):
        assert not await gets_in(known.model_copy(update=change))
    stranger = AccessFolder.create(tmp_path / "other", ServerAddresses(names=["127.0.0.1"]))
    with stranger.changing():
        forged = stranger.add("client", "alice", now=NOW)
    with_our_authority = forged.model_copy(update={"authority": alice.authority})
    assert not await gets_in(settings(server, with_our_authority, tmp_path))
    assert not await gets_in(settings(server, forged, tmp_path)), "its server is another's"


async def test_a_server_is_known_by_its_names_only(
    server: NatsProcess, folder: AccessFolder, tmp_path: Path
) -> None:
    with folder.changing():
        alice = folder.add("client", "alice", now=NOW)
        folder.renew_server(["10.9.9.9"])
    start(server, folder)
    assert not await gets_in(settings(server, alice, tmp_path))
    server.kill()
    with folder.changing():
        folder.renew_server(["127.0.0.1"])
    start(server, folder)
    assert await gets_in(settings(server, alice, tmp_path))


def test_all_that_is_secret_is_for_its_owner_alone(folder: AccessFolder) -> None:
    with folder.changing():
        folder.add("worker", "mac-1", now=NOW)
    for path in [folder.path, *folder.path.rglob("*")]:
        if path.name != ".lock":
            assert not stat.S_IMODE(os.stat(path).st_mode) & 0o077, path


def test_what_was_made_is_there_when_it_is_opened_again(folder: AccessFolder) -> None:
    with folder.changing():
        made = folder.add("controller", "c-1", now=NOW)
    again = AccessFolder(folder.path)
    assert again.membership("controller", "c-1") == made
    assert made.servers == ["tls://127.0.0.1:4222", "tls://localhost:4222"]
    assert made.seed not in (folder.path / "users.json").read_text()
    assert made.seed not in (folder.path / CONFIG_NAME).read_text()


async def test_of_several_who_change_it_at_once_none_is_lost(folder: AccessFolder) -> None:
    def add(number: int) -> None:
        mine = AccessFolder(folder.path)
        with mine.changing():
            mine.add("client", f"c-{number}", now=NOW)

    await asyncio.gather(*(asyncio.to_thread(add, number) for number in range(8)))
    assert len(AccessFolder(folder.path).users) == 8


def accounts(folder: AccessFolder) -> dict[str, Any]:
    """Those that the server is told of."""
    config = json.loads((folder.path / CONFIG_NAME).read_text())
    found: dict[str, Any] = config["accounts"]
    return found


def test_accounts_are_used_again_and_more_are_there_before_they_run_out(
    folder: AccessFolder,
) -> None:
    with folder.changing():
        folder.add("admin", "ada", now=NOW)
        for name in ("a", "b", "c"):
            folder.add("client", name, now=NOW)
        folder.remove("client", "b")
        folder.add("client", "d", now=NOW)
        folder.rotate("client", "d")
    again = AccessFolder(folder.path)
    numbers = {user.name: user.account for user in again.users}
    assert numbers == {"ada": None, "a": 0, "c": 2, "d": 1}
    assert again.client_accounts == len(accounts(folder)) - 1 == 64
    assert len(accounts(folder)["client-1"]["users"]) == 2, "both keys of one client"
    with folder.changing():
        for number in range(62):
            folder.add("client", f"n-{number}", now=NOW)
    assert folder.client_accounts == len(accounts(folder)) - 1 == 128


def test_a_client_may_have_more_connections_than_others(folder: AccessFolder) -> None:
    with folder.changing():
        folder.add("client", "a", now=NOW, max_connections=100)
        folder.add("client", "b", now=NOW)
        folder.add("worker", "w", now=NOW)
    limits = [accounts(folder)[f"client-{n}"]["limits"]["max_connections"] for n in range(3)]
    assert limits == [100, CLIENT_CONNECTIONS, CLIENT_CONNECTIONS]
    with folder.changing():
        folder.limit("client", "b", 7)
        with pytest.raises(SettingsError, match="only a client"):
            folder.limit("worker", "w", 7)
        with pytest.raises(SettingsError, match="only a client"):
            folder.add("gateway", "g", now=NOW, max_connections=7)
        with pytest.raises(SettingsError, match="there is no client 'c'"):
            folder.limit("client", "c", 7)
    assert accounts(folder)["client-1"]["limits"]["max_connections"] == 7


def test_clients_of_a_folder_of_before_get_accounts(folder: AccessFolder) -> None:
    with folder.changing():
        for name in ("a", "b"):
            folder.add("client", name, now=NOW)
    file = folder.path / "users.json"
    content = json.loads(file.read_text())
    for user in content["users"]:
        del user["account"], user["max_connections"]
    file.write_text(json.dumps(content))
    older = AccessFolder(folder.path)
    with older.changing():
        older.remove("client", "a")
    assert [user.account for user in AccessFolder(folder.path).users] == [1], "b keeps its own"


def test_wrong_orders_are_refused(folder: AccessFolder, tmp_path: Path) -> None:
    with folder.changing():
        folder.add("client", "alice", now=NOW)
        for name in ("", "a.b", "a*", ">", "a" * 65, "ä"):
            with pytest.raises(SettingsError, match="a name is"):
                folder.add("client", name, now=NOW)
        with pytest.raises(SettingsError, match="already"):
            folder.add("client", "alice", now=NOW)
        for change in (folder.remove, folder.rotate, folder.retire, folder.membership):
            with pytest.raises(SettingsError, match="there is no worker 'alice'"):
                change("worker", "alice")
    with pytest.raises(SettingsError, match="already"):
        AccessFolder.create(folder.path, ServerAddresses(names=["x"]))
    with pytest.raises(SettingsError, match="cluster auth init"):
        AccessFolder(tmp_path / "nowhere")
    (folder.path / "users.json").write_text("{")
    with pytest.raises(SettingsError, match=r"users\.json"):
        AccessFolder(folder.path)


@pytest.mark.parametrize("hosts", [[], ["a" * 300], [""], ["a..b"]])
def test_a_certificate_needs_names(hosts: list[str]) -> None:
    with pytest.raises(SettingsError):
        new_server(new_authority("x"), hosts)
