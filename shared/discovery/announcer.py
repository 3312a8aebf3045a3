"""Announces a cluster on the local network."""

import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Sequence

import psutil

from shared.discovery.announcement import SERVICE_TYPE, ClusterAnnouncement

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
