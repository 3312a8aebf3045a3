"""The folder with the configuration and certificate of a NATS server.

A single server uses the access folder itself, with absolute paths. Each server of a NATS cluster
has a folder of its own with relative paths: it is copied to the machine of the server, which is
started in it.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from shared.access.certificates import CertificateAndKey, new_server
from shared.access.nats_accounts import User
from shared.access.private_file import write_private
from shared.access.server_config import NatsClusterRoutes, TlsFiles, server_config

CONFIG_NAME = "nats-server.json"
PID_NAME = "nats-server.pid"
"""Of the server that runs with this folder, if any."""
_AUTHORITY = "authority.crt"


@dataclass(frozen=True, slots=True)
class NatsServerFolder:
    """The folder with the configuration and the certificate of one NATS server.

    Attributes:
        names: of this server.
        routes: None for a single server.
    """

    path: Path
    names: Sequence[str]
    routes: NatsClusterRoutes | None

    def write_certificate(self, authority: CertificateAndKey) -> None:
        """Create and write a new certificate.

        Raises:
            SettingsError: a name is invalid.
            OSError: a file cannot be written.
        """
        identity = new_server(authority, self.names)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_identity(self.path, "server", identity)
        if self.routes is not None:
            write_private(self.path / _AUTHORITY, authority.certificate)

    def write_config(self, users: Iterable[User], *, host: str, port: int) -> None:
        """
        Raises:
            OSError: the file cannot be written.
        """
        here = self.path.resolve() if self.routes is None else Path()
        config = server_config(
            users,
            host=host,
            port=port,
            store=here / "jetstream",
            pid_file=here / PID_NAME,
            tls=TlsFiles(here / "server.crt", here / "server.key", here / _AUTHORITY),
            routes=self.routes,
        )
        write_private(self.path / CONFIG_NAME, orjson.dumps(config, option=orjson.OPT_INDENT_2))

    def remove(self) -> None:
        """Delete the folder of a server that has left a NATS cluster."""
        if self.routes is not None:
            shutil.rmtree(self.path, ignore_errors=True)


def server_folders(
    access: Path, names: Sequence[str], route_port: int | None
) -> Sequence[NatsServerFolder]:
    """Return the folder of each server, inside the access folder.

    Args:
        names: all of a single server if `route_port` is None; else one per server.
    """
    if route_port is None:
        return [NatsServerFolder(access, names, None)]
    return [
        NatsServerFolder(
            access / "servers" / name,
            [name],
            NatsClusterRoutes(name, [other for other in names if other != name], route_port),
        )
        for name in dict.fromkeys(names)
    ]


def write_identity(folder: Path, name: str, identity: CertificateAndKey) -> None:
    """
    Raises:
        OSError: a file cannot be written.
    """
    write_private(folder / f"{name}.key", identity.key)
    write_private(folder / f"{name}.crt", identity.certificate)
