"""What `cluster up` keeps on this machine, by the port of its NATS server."""

import ipaddress
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from shared.errors import SettingsError
from shared.folders import data_folder

DEFAULT_PORT = 4222


def cluster_folder(port: int) -> Path:
    """Logs, JetStream's store and the token of the cluster on this port."""
    return data_folder() / f"cluster-{port}"


def needed_token(host: str, folder: Path) -> str | None:
    """None where only this machine can connect; else a token that is made once and kept.

    Raises:
        SettingsError: `host` is no address.
    """
    if is_loopback(host):
        return None
    path = folder / "token"
    if not path.is_file():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(24))
    return path.read_text().strip()


def kept_token(server: str) -> str | None:
    """The token of a cluster that was started on this machine, for commands run beside it."""
    parts = urlsplit(server if "://" in server else f"nats://{server}")
    try:
        port = parts.port or DEFAULT_PORT
        if parts.hostname is None or parts.username or not is_loopback(parts.hostname):
            return None
        return (cluster_folder(port) / "token").read_text().strip()
    except (OSError, ValueError, SettingsError):
        return None


def local_address(host: str, port: int) -> str:
    """`host:port` where a process on this machine reaches a server that listens on `host`."""
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"[{local}]:{port}" if ":" in local else f"{local}:{port}"


def is_loopback(host: str) -> bool:
    """Raises SettingsError when `host` is neither localhost nor an IP address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise SettingsError(f"--listen: {host!r} is no IP address") from None
