"""How each role connects in this test run: without more, or with `--secured` by its own key."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.access.roles import Role
from shared.bus import Bus
from shared.bus.options import client_options
from shared.cli.local.access import variables
from shared.ids import LOCAL_CLIENT
from shared.settings.tree import Nats
from shared.subjects import inbox_prefix
from tests.access.members import Members
from tests.access.refusals import Refusals

refusals = Refusals()
_members: Members | None = None


def secure(folder: Path) -> None:
    """From now on everybody in this process needs a key; called once, before the first test."""
    global _members
    _members = Members.create(folder)


def secured() -> bool:
    return _members is not None


def as_role(role: Role, name: str, server: str) -> Nats:
    """How the one of that role and name connects to a server of the tests."""
    return Nats(servers=[server]) if _members is None else _members.nats(server, role, name)


def as_client(server: str, name: str = LOCAL_CLIENT) -> Nats:
    return as_role("client", name, server)


def as_tester(server: str) -> Nats:
    """How what listens in, or plays several parts, connects: it may do everything."""
    return Nats(servers=[server]) if _members is None else _members.tester(server)


def environment(role: Role, name: str) -> dict[str, str]:
    """The settings of a process that is started, but for where the server is."""
    if _members is None:
        return {}
    return {
        "CLUSTER__SECURITY__STRICT_INBOX": "true",
        **variables(_members.nats("nats://127.0.0.1", role, name)),
    }


async def connect_as(role: Role, name: str, server: str, *, wait_s: float = 10) -> Bus:
    """A connection of the one of that role and name, as its process has it.

    Raises:
        BusUnreachable: as `Bus.connect`.
    """
    nats, prefix = as_role(role, name, server), inbox_prefix(role, name)
    return await Bus.connect(nats, name=f"{role} {name}", inbox_prefix=prefix, wait_s=wait_s)


def connect_options(nats: Nats, role: Role = "client", name: str = LOCAL_CLIENT) -> dict[str, Any]:
    """The same for `nats.connect`, with inboxes of that role and name."""
    options = client_options(nats, name="test", inbox_prefix=inbox_prefix(role, name))
    kept = ("servers", "inbox_prefix", "nkeys_seed", "tls")
    return {key: value for key, value in options.items() if key in kept}


def server_settings(log: Path) -> Mapping[str, Any]:
    """Of a server that keeps this log: who may take part."""
    if _members is None:
        return {}
    refusals.watch(log)
    return _members.server_settings


def cluster_up(scripts: Path) -> list[str]:
    """The command that starts a cluster on a free port and tells of it in JSON.

    Args:
        scripts: where our commands are.
    """
    if _members is None:
        return [str(scripts / "cluster"), "up", "--json", "--nats-port", "0"]
    folder = Path(tempfile.mkdtemp(dir=_members.folder))
    refusals.watch(folder / "logs" / "nats.log")
    command = [sys.executable, "-m", "tests.access.up"]
    return [*command, "--members", str(_members.folder), "--folder", str(folder)]


def refused() -> list[str]:
    """What servers refused somebody since this was asked last."""
    lines = refusals.new()
    return [_members.named(line) for line in lines] if _members is not None else []
