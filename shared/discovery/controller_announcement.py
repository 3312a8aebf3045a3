"""The announcement of a controller, from its settings and the INFO of its NATS server."""

import contextlib
import hashlib
import ipaddress
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from shared.bus import ServerInfo
from shared.discovery.announcement import Access, ClusterAnnouncement
from shared.settings.nats import NatsSettings


def announcement_of(settings: NatsSettings, server: ServerInfo) -> ClusterAnnouncement | None:
    """Return the announcement; None if only this machine can reach the server.

    Args:
        settings: of the controller's connection.
    """
    remote = tuple(_without_credentials(url) for url in settings.servers if not _is_local(url))
    if not remote and not _is_wildcard(server.host):
        return None
    authority = _fingerprint(settings)
    return ClusterAnnouncement(
        cluster=server.cluster or server.name,
        id=authority or server.cluster or server.id,
        access=_access(settings, server),
        servers=remote,
        port=server.port,
        authority=authority,
    )


def _access(settings: NatsSettings, server: ServerInfo) -> Access:
    if settings.nkey_seed_file is not None or settings.user_credentials is not None:
        return "keys"
    if settings.token is not None:
        return "token"
    return "keys" if server.requires_auth else "open"


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.rpartition("://")
    return f"{scheme or 'nats'}://{rest.rpartition('@')[2]}"


def _is_local(url: str) -> bool:
    host = urlsplit(url if "://" in url else f"nats://{url}").hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _is_wildcard(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def _fingerprint(settings: NatsSettings) -> str:
    if settings.tls is None or settings.tls.ca_file is None:
        return ""
    try:
        pem = Path(settings.tls.ca_file).expanduser().read_text()
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except (OSError, ValueError):
        return ""
