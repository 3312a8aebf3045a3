"""`cluster auth`, against a real server that takes its changes while it runs."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shared.access.folder import AccessFolder
from shared.access.member_credentials import read_token
from shared.access.stored_memberships import membership
from shared.bus import Bus
from shared.cli.auth import command
from shared.errors import BusUnreachable
from tests.access.members import nats_of
from tests.processes import SCRIPTS, free_port, wait_for

pytestmark = pytest.mark.anyio


class Auth:
    """The command, with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str) -> str:
        result = CliRunner().invoke(command, [*arguments, "--folder", str(self.folder)])
        assert result.exit_code == 0, result.output
        return result.stdout

    def refused(self, *arguments: str) -> str:
        result = CliRunner().invoke(command, [*arguments, "--folder", str(self.folder)])
        assert result.exit_code == 2, result.output
        return result.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def auth(tmp_path: Path, home: Path) -> Auth:
    return Auth(tmp_path / "access")


@pytest.fixture
def running(auth: Auth) -> Iterator[Auth]:
    """With a server that was started as `init` says."""
    config = auth.json("init", "--host", "127.0.0.1", "--port", free_port())["server_config"]
    server = subprocess.Popen(
        [SCRIPTS / "nats-server", "--config", config], stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: (auth.folder / "nats-server.pid").exists(), "the server runs")
        yield auth
    finally:
        server.kill()
        server.wait()


async def connected(token: str, folder: Path, wait_s: float = 5) -> Bus:
    """As somebody who was given this token."""
    member = read_token(token)
    nats, prefix = nats_of(member, folder), f"_INBOX.{member.name}"
    return await Bus.connect(nats, name="test", inbox_prefix=prefix, wait_s=wait_s)


async def test_a_running_server_takes_who_is_added_and_drops_who_is_removed(
    running: Auth, tmp_path: Path
) -> None:
    token = running("add", "client", "ada")
    bus = await connected(token, tmp_path)
    await bus.flush()
    running("rm", "client", "ada")
    await asyncio.wait_for(bus.wait_lost(), 10)
    await bus.close()
    with pytest.raises(BusUnreachable, match="Authorization"):
        await connected(token, tmp_path, wait_s=0.5)


async def test_a_new_key_is_good_at_once_and_the_old_one_until_it_is_retired(
    running: Auth, tmp_path: Path
) -> None:
    before = running("add", "client", "ada")
    after = running("rotate", "client", "ada")
    assert before != after == running("token", "client", "ada")
    await (await connected(after, tmp_path)).close()
    bus = await connected(before, tmp_path)
    assert "the old key is still valid" in running("ls")
    running("retire", "client", "ada")
    assert "old key" not in running("ls")
    await asyncio.wait_for(bus.wait_lost(), 10)
    await bus.close()
    await (await connected(after, tmp_path)).close()
    with pytest.raises(BusUnreachable):
        await connected(before, tmp_path, wait_s=0.5)


async def test_a_limit_of_connections_holds_at_once(running: Auth, tmp_path: Path) -> None:
    token = running("add", "client", "ada", "--max-connections", "1")
    bus = await connected(token, tmp_path)
    with pytest.raises(BusUnreachable, match="cluster auth limit"):
        await connected(token, tmp_path, wait_s=0)
    running("limit", "client", "ada", "--max-connections", "2")
    await (await connected(token, tmp_path)).close()
    assert bus.connections == 1
    await bus.close()
    (ada,) = (user for user in running.json("ls")["users"] if user["name"] == "ada")
    assert ada["max_connections"] == 2
    assert "only a client" in running.refused("limit", "admin", "ada", "--max-connections", "2")


def test_it_lists_who_may_take_part_and_no_secret(auth: Auth) -> None:
    auth("init", "--host", "127.0.0.1")
    token = auth.json("add", "worker", "mac-1")["token"]
    seed = read_token(token).seed
    users = {(user["role"], user["name"]) for user in auth.json("ls")["users"]}
    assert ("worker", "mac-1") in users and ("admin", *_admin(users)) in users
    for told in (auth("ls"), auth("ls", "--json")):
        assert "mac-1" in told and seed not in told and token not in told


def _admin(users: set[tuple[str, str]]) -> tuple[str]:
    (name,) = (name for role, name in users if role == "admin")
    return (name,)


def test_who_begins_is_the_administrator_here_unless_of_another_cluster(auth: Auth) -> None:
    assert auth.json("init", "--host", "127.0.0.1")["joined"]
    admin = membership("cluster")
    assert admin is not None and admin.role == "admin"
    assert auth("token", "admin", admin.name).strip() == admin.token()
    second = Auth(auth.folder.parent / "second")
    assert "has joined another cluster" in second("init", "--host", "127.0.0.1")
    assert membership("cluster") == admin


def test_several_servers_have_a_folder_each_and_the_way_to_their_machines_is_told(
    auth: Auth,
) -> None:
    hosts = [part for name in ("a", "b", "c") for part in ("--host", name)]
    told = auth("init", "--clustered", *hosts)
    assert f"Copy each folder in {auth.folder}/servers to its machine" in told
    added = CliRunner().invoke(command, ["add", "client", "ada", "--folder", str(auth.folder)])
    assert "to their machines again" in added.stderr and "reload=nats-server.pid" in added.stderr
    assert "restart the servers" not in added.stderr
    access = AccessFolder(auth.folder)
    with access.changing():
        for number in range(63):
            access.add("client", f"n-{number}", now="2026-11-29T12:00:00Z")
    full = CliRunner().invoke(command, ["add", "client", "eve", "--folder", str(auth.folder)])
    assert "restart the servers" in full.stderr, "a reload shows them no new account"
    another = Auth(auth.folder.parent / "another")
    assert "3 servers at least" in another.refused("init", "--clustered", *hosts[:4])
    assert not another.folder.exists()
    configs = another.json("init", "--clustered", *hosts)["server_configs"]
    assert [Path(config).parent.name for config in configs] == ["a", "b", "c"]


def test_wrong_orders_say_what_to_do(auth: Auth) -> None:
    assert "cluster auth init" in auth.refused("add", "client", "ada")
    auth("init", "--host", "127.0.0.1")
    assert "already" in auth.refused("init")
    assert "a name is" in auth.refused("add", "client", "a.b")
    assert "a name is" in auth.refused("add", "client", ">")
    assert "is not one of" in auth.refused("add", "king", "ada")
    assert "cluster auth ls" in auth.refused("rm", "client", "nobody")
    auth("add", "client", "ada")
    assert "already" in auth.refused("add", "client", "ada")
    assert (
        "no server"
        in CliRunner()
        .invoke(command, ["rm", "client", "ada", "--folder", str(auth.folder)])
        .stderr.lower()
    )
