"""Everybody who may take part in the clusters of a test run, each with a key of its own."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from shared.access.certificates import new_authority, new_server
from shared.access.member_credentials import MemberCredentials, new_seed, public_key
from shared.access.nats_accounts import CLUSTER_ACCOUNT, User
from shared.access.roles import Role
from shared.access.server_config import TlsFiles, server_config
from shared.settings.nats import NatsSettings, TlsSettings

NAMES: Mapping[Role, Sequence[str]] = {
    "client": ("local", "ada"),
    "gateway": ("gateway",),
    "controller": (
        *(f"{prefix}-{number}" for prefix in ("c", "controller") for number in range(1, 10)),
        *("a", "b", "c", "d"),
    ),
    "worker": tuple(f"worker-{number}" for number in range(1, 41)),
    "admin": ("local", "ada"),
}
"""Of those that tests start; a server knows all of them from its start on."""
_SERVER = "server.json"
_AUTHORITY = "authority.crt"
_TESTER = "tester"
_CONNECTIONS = 256
"""Of one client: some tests play very many programs with the same key."""
_PLACED = ("host", "port", "jetstream")
"""Settings that each server has for itself."""


def nats_of(member: MemberCredentials, folder: Path, *servers: str) -> NatsSettings:
    """How somebody connects who has a token of a cluster of its own.

    Args:
        folder: where the key and the authority are put.
        servers: instead of those that the token names.
    """
    assert member.authority is not None
    seed, authority = folder / f"{member.name}.nk", folder / "authority.crt"
    seed.write_text(member.seed)
    authority.write_text(member.authority)
    return NatsSettings(
        servers=list(servers) or member.servers,
        nkey_seed_file=str(seed),
        tls=TlsSettings(ca_file=str(authority)),
    )


class Members:
    """What `create` has put into a folder: certificates, seeds, and the settings of servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Make keys and certificates of a new run."""
        authority = new_authority("tests")
        server = new_server(authority, ["127.0.0.1", "localhost"])
        files = TlsFiles(folder / "server.crt", folder / "server.key", folder / _AUTHORITY)
        files.certificate.write_bytes(server.certificate)
        files.key.write_bytes(server.key)
        files.authority.write_bytes(authority.certificate)
        members = cls(folder)
        users = [
            User(role, name, members._new_key(role, name), number, _CONNECTIONS)
            for role, names in NAMES.items()
            for number, name in enumerate(names)
        ]
        config = server_config(users, host="", port=0, store=folder, tls=files)
        tester = {"nkey": members._new_key(_TESTER, _TESTER)}
        config["accounts"][CLUSTER_ACCOUNT]["users"].append(tester)
        settings = {key: value for key, value in config.items() if key not in _PLACED}
        (folder / _SERVER).write_text(json.dumps(settings))
        return members

    @property
    def server_settings(self) -> Mapping[str, Any]:
        """Of every server but for where it listens and keeps things."""
        settings: dict[str, Any] = json.loads((self.folder / _SERVER).read_text())
        return settings

    def nats(self, server: str, role: Role, name: str) -> NatsSettings:
        """How the one of that role and name connects.

        Raises:
            LookupError: nobody of that role has that name.
        """
        return self._nats(server, role, name)

    def tester(self, server: str) -> NatsSettings:
        """How what listens in, or plays several parts, connects: it may do everything."""
        return self._nats(server, _TESTER, _TESTER)

    def named(self, line: str) -> str:
        """What a server logged, with names for public keys."""
        for seed in self.folder.glob("*.nk"):
            line = re.sub(rf"[\w-]+/nkey:{public_key(seed.read_text())}", seed.stem, line)
        return line

    def _nats(self, server: str, role: str, name: str) -> NatsSettings:
        seed = self._seed(role, name)
        if not seed.exists():
            raise LookupError(f"no {role} {name!r} among the NAMES of {__name__}")
        authority = str(self.folder / _AUTHORITY)
        return NatsSettings(
            servers=[server], nkey_seed_file=str(seed), tls=TlsSettings(ca_file=authority)
        )

    def _new_key(self, role: str, name: str) -> str:
        seed = new_seed()
        self._seed(role, name).write_text(seed)
        return public_key(seed)

    def _seed(self, role: str, name: str) -> Path:
        return self.folder / f"{role}-{name}.nk"
