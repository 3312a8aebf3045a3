"""The configuration of a NATS server that knows its users. JSON is a NATS configuration too."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.access.keys import new_seed, public_key
from shared.access.roles import Role, permissions

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
CLUSTER_NAME = "mlx-nats"
"""What several servers that are one call themselves."""
_MAX_MEMORY_STORE_BYTES = 256 * 1024 * 1024
_MAX_FILE_STORE_BYTES = 4 * 1024**3
"""Of JetStream, on disk and in memory: it keeps who leads and what is rolled out, no streams."""
_MAX_CONTROL_LINE_BYTES = 4096
_MAX_SUBSCRIPTIONS = 100_000
_LOGIN_S = 2


@dataclass(frozen=True, slots=True)
class User:
    """Attributes:
    public_key: an nkey, `U...`: who can sign with its seed is this user.
    """

    role: Role
    name: str
    public_key: str


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """PEM files: its certificate, the key of that, and the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class Routes:
    """How a server of several finds the others.

    Attributes:
        name: its own: no other one has it, and others reach it by that.
        others: the names of all others. Not its own: JetStream would count it twice, and two of
            three would be no majority.
        port: where each of them listens for the others.
    """

    name: str
    others: Sequence[str]
    port: int


def server_config(
    users: Iterable[User],
    *,
    host: str,
    port: int,
    store: Path,
    tls: ServerFiles | None,
    pid_file: Path | None = None,
    max_connections: int = 1024,
    routes: Routes | None = None,
) -> dict[str, Any]:
    """What a server is started with; users, limits and certificates may change while it runs
    (`nats-server --signal reload`). Paths that are relative hold from where it is started.

    Args:
        store: JetStream's folder.
        max_connections: of all users together.
        routes: of a server that is one of several; they know one another by certificate, so that
            needs `tls`.
    """
    config: dict[str, Any] = {
        "host": host,
        "port": port,
        **sizes(store),
        "max_control_line": _MAX_CONTROL_LINE_BYTES,
        "max_connections": max_connections,
        "max_subscriptions": _MAX_SUBSCRIPTIONS,
        "authorization": {
            "timeout": _LOGIN_S,
            "users": [_entry(user) for user in users] or [_nobody()],
        },
    }
    if pid_file is not None:
        config["pid_file"] = str(pid_file)
    if tls is not None:
        config["tls"] = _tls(tls)
    if routes is not None:
        assert tls is not None, "servers know one another by certificate"
        config["server_name"] = routes.name
        config["cluster"] = {
            "name": CLUSTER_NAME,
            "host": host,
            "port": routes.port,
            "routes": [f"nats-route://{in_url(other)}:{routes.port}" for other in routes.others],
            "tls": {**_tls(tls), "verify": True},
        }
    return config


def in_url(host: str) -> str:
    """A name or address as a URL has it."""
    return f"[{host}]" if ":" in host else host


def _tls(files: ServerFiles) -> dict[str, Any]:
    return {
        "cert_file": str(files.certificate),
        "key_file": str(files.key),
        "ca_file": str(files.authority),
        "timeout": _LOGIN_S,
    }


def sizes(store: Path) -> dict[str, Any]:
    """What every server of ours has: room for our messages, and JetStream in a folder."""
    return {
        "max_payload": MAX_PAYLOAD_BYTES,
        "max_pending": 8 * MAX_PAYLOAD_BYTES,
        "jetstream": {
            "store_dir": str(store),
            "max_file_store": _MAX_FILE_STORE_BYTES,
            "max_memory_store": _MAX_MEMORY_STORE_BYTES,
        },
    }


def _nobody() -> dict[str, Any]:
    """A user that nobody can be: a server without any lets everybody in."""
    return {"nkey": public_key(new_seed()), "permissions": {"publish": {"deny": [">"]}}}


def _entry(user: User) -> dict[str, Any]:
    allowed = permissions(user.role, user.name)
    return {
        "nkey": user.public_key,
        "permissions": {
            "publish": {"allow": list(allowed.publish)},
            "subscribe": {"allow": list(allowed.subscribe)},
        },
    }
