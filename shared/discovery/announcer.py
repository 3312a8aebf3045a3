"""Tells the local network of a cluster, while it is there."""

import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Sequence

import psutil

from shared.discovery.announcement import SERVICE_TYPE, Announcement

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def announced(
    announcement: Announcement, name: str, interfaces: Sequence[str]
) -> AsyncIterator[None]:
    """Meanwhile the network is told. Where it cannot be, the log says so and nothing is wrong.

    Args:
        name: of who announces it; another one is taken where somebody else has it.
        interfaces: addresses of this machine on whose networks it is told; by default all.
    """
    from zeroconf import Error, ServiceInfo  # only where it is used: it takes a while
    from zeroconf.asyncio import AsyncZeroconf

    try:
        zeroconf = AsyncZeroconf(interfaces=list(interfaces)) if interfaces else AsyncZeroconf()
    except (OSError, Error) as error:
        logger.warning("this network is not told of the cluster: %s", error)
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
            logger.warning("this network is not told of the cluster: %r", error)
        yield
    finally:
        await zeroconf.async_close()


def _addresses(interfaces: Sequence[str]) -> list[str]:
    """Of this machine, for others: not of itself alone, nor of one network of several."""
    if interfaces:
        return list(interfaces)
    known = [entry.address for each in psutil.net_if_addrs().values() for entry in each
             if entry.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    found = [ipaddress.ip_address(address.partition("%")[0]) for address in known]
    return [str(address) for address in found if not (address.is_loopback or address.is_link_local)]
