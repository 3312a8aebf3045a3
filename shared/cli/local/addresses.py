"""Addresses of servers on this machine, and the files that `cluster up` stores there for them."""

import ipaddress
import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from shared.errors import SettingsError
from shared.folders import data_folder
from shared.loopback import is_surely_loopback


def local_address(host: str, port: int) -> str:
    """Return `host:port` for processes on this machine, for a server that listens on `host`."""
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"[{local}]:{port}" if ":" in local else f"{local}:{port}"


def network_address(host: str, port: int) -> str:
    """Return `host:port` for other machines, for a server that listens on `host`."""
    reachable = _own_address() if host in ("0.0.0.0", "::") else host
    return f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"


def _own_address() -> str:
    """Return the address of this machine on its main network, else its host name."""
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # selects the interface; UDP sends nothing yet
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return socket.gethostname()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`.

    Raises:
        SettingsError: `host` is neither localhost nor an IP address.
    """
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise SettingsError(f"--listen: {host!r} is not an IP address") from None
    return is_surely_loopback(host)


DEFAULT_PORT = 4222


def cluster_folder(port: int) -> Path:
    """Return the folder for logs, the JetStream store and the token of the cluster on this port."""
    return data_folder() / f"cluster-{port}"


def required_token(host: str, folder: Path) -> str | None:
    """Return the token of the cluster, created once; None if only this machine can connect.

    Raises:
        SettingsError: `host` is not an address.
    """
    if is_loopback(host):
        return None
    path = folder / "token"
    if not path.is_file():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(24))
    return path.read_text().strip()


def stored_token(server: str) -> str | None:
    """Return the token of a cluster that was started on this machine, or None."""
    parts = urlsplit(server if "://" in server else f"nats://{server}")
    try:
        port = parts.port or DEFAULT_PORT
        if parts.hostname is None or parts.username or not is_loopback(parts.hostname):
            return None
        return (cluster_folder(port) / "token").read_text().strip()
    except (OSError, ValueError, SettingsError):
        return None
