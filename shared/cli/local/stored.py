"""Files that `cluster up` stores on this machine, by the port of its NATS server."""

import secrets
from pathlib import Path
from urllib.parse import urlsplit

from shared.cli.local.addresses import is_loopback
from shared.errors import SettingsError
from shared.folders import data_folder

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
