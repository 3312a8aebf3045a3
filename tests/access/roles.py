"""How each role connects to a server of the tests.

A server is open, or secured: it knows each role by its key, over TLS. A test module's draw says
which its servers are (`draw`), so that both kinds run in every suite.
"""

import atexit
import shutil
import sys
import tempfile
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shared.access.roles import Role
from shared.bus import Bus
from shared.bus.options import client_options
from shared.cli.local.access import credential_variables
from shared.ids import LOCAL_CLIENT
from shared.settings.nats import NatsSettings
from shared.subjects import inbox_prefix
from tests.access.members import Members
from tests.access.refusals import Refusals

refusals = Refusals()
_secured_ports: set[int] = set()
_drawn = False


def drawn_for(module: str, fixed: bool | None) -> bool:
    """Whether the servers of a module are secured: always the same, as its name says.

    Args:
        fixed: what the module itself says, where it is about one of the two.
    """
    return zlib.crc32(module.encode()) % 2 == 1 if fixed is None else fixed


def draw(secured: bool) -> None:
    """Servers that are started from now on are secured, or not."""
    global _drawn
    _drawn = secured


def drawn() -> bool:
    """Whether a server that is started now is secured."""
    return _drawn


def register(server: str, secured: bool) -> None:
    """Say of the server at that URL what it is."""
    port = _port(server)
    _secured_ports.discard(port)
    if secured:
        _secured_ports.add(port)


def is_secured(server: str) -> bool:
    """Whether the server at that URL is secured, or the one that a line leads to."""
    return _port(server) in _secured_ports


def as_role(role: Role, name: str, server: str) -> NatsSettings:
    """How the one of that role and name connects."""
    return (
        members().nats(server, role, name) if is_secured(server) else NatsSettings(servers=[server])
    )


def as_client(server: str, name: str = LOCAL_CLIENT) -> NatsSettings:
    return as_role("client", name, server)


def as_tester(server: str) -> NatsSettings:
    """How what listens in, or plays several parts, connects: it may do everything."""
    return members().tester(server) if is_secured(server) else NatsSettings(servers=[server])


def environment(role: Role, name: str, server: str) -> dict[str, str]:
    """The settings of a process that is started, but for where the server is."""
    if not is_secured(server):
        return {}
    return {
        "CLUSTER__SECURITY__STRICT_INBOX": "true",
        **credential_variables(members().nats(server, role, name)),
    }


async def connect_as(role: Role, name: str, server: str, *, wait_s: float = 10) -> Bus:
    """A connection of the one of that role and name, as its process has it.

    Raises:
        BusUnreachable: as `Bus.connect`.
    """
    nats, prefix = as_role(role, name, server), inbox_prefix(role, name)
    return await Bus.connect(nats, name=f"{role} {name}", inbox_prefix=prefix, wait_s=wait_s)


def connect_options(
    nats: NatsSettings, role: Role = "client", name: str = LOCAL_CLIENT
) -> dict[str, Any]:
    """The same for `nats.connect`, with inboxes of that role and name."""
    options = client_options(nats, name="test", inbox_prefix=inbox_prefix(role, name))
    kept = ("servers", "inbox_prefix", "nkeys_seed", "tls")
    return {key: value for key, value in options.items() if key in kept}


def server_settings(log: Path) -> Mapping[str, Any]:
    """Of a secured server that keeps this log: who may take part."""
    refusals.watch(log)
    return members().server_settings


def cluster_up(scripts: Path, secured: bool) -> list[str]:
    """The command that starts a cluster on a free port and tells of it in JSON.

    Args:
        scripts: where our commands are.
    """
    if not secured:
        return [str(scripts / "cluster"), "up", "--json", "--nats-port", "0"]
    folder = Path(tempfile.mkdtemp(dir=members().folder))
    refusals.watch(folder / "logs" / "nats.log")
    command = [sys.executable, "-m", "tests.access.up"]
    return [*command, "--members", str(members().folder), "--folder", str(folder)]


def refused() -> list[str]:
    """What servers refused somebody since this was asked last."""
    lines = refusals.new()
    return [members().named(line) for line in lines]


@cache
def members() -> Members:
    """Everybody's keys, made once for this process."""
    folder = tempfile.mkdtemp(prefix="mlx-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Members.create(Path(folder))


def _port(server: str) -> int:
    port = urlsplit(server).port
    assert port is not None, server
    return port
