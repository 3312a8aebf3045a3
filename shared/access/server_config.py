"""The configuration of a NATS server with users, as JSON, which NATS reads too."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.access.nats_accounts import User, accounts

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
CLUSTER_NAME = "mlx-nats"
"""The name of a cluster of NATS servers."""
_MAX_MEMORY_STORE_BYTES = 256 * 1024 * 1024
_MAX_FILE_STORE_BYTES = 4 * 1024**3
"""Limits of JetStream, which stores the lease, roll-outs and responses, but no answer streams."""
_MAX_CONTROL_LINE_BYTES = 4096
_MAX_SUBSCRIPTIONS = 100_000
_MAX_CONNECTIONS = 16_384
"""Far above what all clients may have: sockets count before they log in, and each may stall for
`_LOGIN_S` in TLS and again at the login. Below the files that a process may open on a Mac."""
_LOGIN_S = 2
_PING_INTERVAL_S = 20
_MAX_PINGS = 2
"""Unanswered pings, after which a connection is gone. Until then it counts as one of its client."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate, its key, and the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class NatsClusterRoutes:
    """The routes of a server in a NATS cluster.

    Attributes:
        name: of this server: unique, and others reach it by this name.
        others: the names of the other servers. A server that lists itself counts twice in
            JetStream's quorum, so that two of three servers would be no majority.
        port: on which each server listens for routes.
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
    tls: TlsFiles | None,
    pid_file: Path | None = None,
    routes: NatsClusterRoutes | None = None,
) -> dict[str, Any]:
    """Return the configuration of a server. Users, limits and certificates can be changed while it
    runs (`nats-server --signal reload`). Relative paths start at its working directory.

    Args:
        store: JetStream's folder.
        routes: of a server in a NATS cluster; requires `tls`, because the servers authenticate each
            other by certificate.
    """
    config: dict[str, Any] = {
        "host": host,
        "port": port,
        **sizes(store),
        "max_control_line": _MAX_CONTROL_LINE_BYTES,
        "max_connections": _MAX_CONNECTIONS,
        "max_subscriptions": _MAX_SUBSCRIPTIONS,
        "ping_interval": f"{_PING_INTERVAL_S}s",
        "ping_max": _MAX_PINGS,
        "authorization": {"timeout": _LOGIN_S},
        "accounts": accounts(users),
    }
    if pid_file is not None:
        config["pid_file"] = str(pid_file)
    if tls is not None:
        config["tls"] = _tls(tls)
    if routes is not None:
        assert tls is not None, "servers authenticate each other by certificate"
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
    """Return a name or address in the form of a URL."""
    return f"[{host}]" if ":" in host else host


def _tls(files: TlsFiles) -> dict[str, Any]:
    return {
        "cert_file": str(files.certificate),
        "key_file": str(files.key),
        "ca_file": str(files.authority),
        "timeout": _LOGIN_S,
    }


def sizes(store: Path) -> dict[str, Any]:
    """Return the limits of every server of ours: the size of messages, and of JetStream."""
    return {
        "max_payload": MAX_PAYLOAD_BYTES,
        "max_pending": 8 * MAX_PAYLOAD_BYTES,
        "jetstream": {
            "store_dir": str(store),
            "max_file_store": _MAX_FILE_STORE_BYTES,
            "max_memory_store": _MAX_MEMORY_STORE_BYTES,
        },
    }
