"""Announces a cluster on the local network."""

import contextlib
import hashlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from shared.bus import ServerInfo
from shared.discovery.announcement import SERVICE_TYPE, Access, ClusterAnnouncement
from shared.settings.nats import NatsSettings

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def announced(
    announcement: ClusterAnnouncement, name: str, interfaces: Sequence[str]
) -> AsyncIterator[None]:
    """Announce the cluster while the context is open. A failure is only logged.

    Args:
        name: of the announcing process; another one is used if it is in use.
        interfaces: addresses of this machine that select the networks; by default all.
    """
    from zeroconf import Error, ServiceInfo  # a slow import
    from zeroconf.asyncio import AsyncZeroconf

    try:
        zeroconf = AsyncZeroconf(interfaces=list(interfaces)) if interfaces else AsyncZeroconf()
    except (OSError, Error) as error:
        logger.warning("cannot announce the cluster on this network: %s", error)
        yield
        return
    try:
        info = ServiceInfo(
            SERVICE_TYPE,
            f"{name}.{SERVICE_TYPE}",
            port=announcement.port,
            parsed_addresses=_addresses(interfaces),
            properties=dict(announcement.properties()),
        )
        try:
            await (await zeroconf.async_register_service(info, allow_name_change=True))
        except (OSError, Error) as error:
            logger.warning("cannot announce the cluster on this network: %r", error)
        yield
    finally:
        await zeroconf.async_close()


def _addresses(interfaces: Sequence[str]) -> list[str]:
    """Return the addresses at which others reach this machine: not loopback, not link-local."""
    if interfaces:
        return list(interfaces)
    known = [entry.address for each in psutil.net_if_addrs().values() for entry in each
             if entry.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    found = [ipaddress.ip_address(address.partition("%")[0]) for address in known]
    return [str(address) for address in found if not (address.is_loopback or address.is_link_local)]


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
