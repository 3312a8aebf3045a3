"""The folder that a NATS server is started in, or with.

A server that is alone has it in the folder of all secrets, and says where its files lie. One of
several has a folder of its own that says nothing of that: it is copied to the server's machine, and
the server is started in it.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from shared.access.certificates import Identity, new_server
from shared.access.private_file import keep_private
from shared.access.server_config import Routes, ServerFiles, User, server_config

CONFIG_NAME = "nats-server.json"
PID_NAME = "nats-server.pid"
"""Of the server that was started with that, if any."""
_AUTHORITY = "authority.crt"


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """
    Attributes:
        names: of this server.
        routes: None for one that is alone.
    """

    path: Path
    names: Sequence[str]
    routes: Routes | None

    def keep_certificate(self, authority: Identity) -> None:
        """Give it a new one.

        Raises:
            SettingsError: a name is unusable.
            OSError: it cannot be written.
        """
        identity = new_server(authority, self.names)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_identity(self.path, "server", identity)
        if self.routes is not None:
            keep_private(self.path / _AUTHORITY, authority.certificate)

    def keep_config(self, users: Iterable[User], *, host: str, port: int) -> None:
        """
        Raises:
            OSError: it cannot be written.
        """
        here = self.path.resolve() if self.routes is None else Path()
        config = server_config(
            users,
            host=host,
            port=port,
            store=here / "jetstream",
            pid_file=here / PID_NAME,
            tls=ServerFiles(here / "server.crt", here / "server.key", here / _AUTHORITY),
            routes=self.routes,
        )
        keep_private(self.path / CONFIG_NAME, orjson.dumps(config, option=orjson.OPT_INDENT_2))

    def remove(self) -> None:
        """Of one of several that is none of them any more."""
        if self.routes is not None:
            shutil.rmtree(self.path, ignore_errors=True)


def server_folders(
    access: Path, names: Sequence[str], route_port: int | None
) -> Sequence[ServerFolder]:
    """One for each server, in the folder of all secrets.

    Args:
        names: all of the one server's where `route_port` is None; else one for each.
    """
    if route_port is None:
        return [ServerFolder(access, names, None)]
    return [
        ServerFolder(
            access / "servers" / name,
            [name],
            Routes(name, [other for other in names if other != name], route_port),
        )
        for name in dict.fromkeys(names)
    ]


def keep_identity(folder: Path, name: str, identity: Identity) -> None:
    """
    Raises:
        OSError: it cannot be written.
    """
    keep_private(folder / f"{name}.key", identity.key)
    keep_private(folder / f"{name}.crt", identity.certificate)
