"""Finds the clusters that announce themselves."""

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator, Sequence

from shared.discovery.announcement import SERVICE_TYPE, ClusterAnnouncement, read_announcement

logger = logging.getLogger(__name__)

_QUERY_MS = 10_000
"""zeroconf repeats the query every second or so: one lost packet loses no cluster."""
_MAX_NAMES = 256
"""Anybody can announce; further announcements are ignored."""


class DiscoveredClusters:
    """The clusters that are announced now."""

    def __init__(self) -> None:
        self._by_name: dict[str, ClusterAnnouncement] = {}

    @property
    def clusters(self) -> list[ClusterAnnouncement]:
        """One announcement per cluster, sorted by name."""
        each = {announcement.id: announcement for announcement in self._by_name.values()}
        return sorted(each.values(), key=lambda found: (found.cluster, found.id))

    def add(self, name: str, announcement: ClusterAnnouncement | None) -> None:
        if announcement is not None and len(self._by_name) < _MAX_NAMES:
            self._by_name[name] = announcement

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)


@contextlib.asynccontextmanager
async def discovering(interfaces: Sequence[str]) -> AsyncIterator[DiscoveredClusters]:
    """Query the network while the context is open, and collect the replies in the finder. A
    failure is only logged, and nothing is found.

    Args:
        interfaces: addresses of this machine that select the networks; by default all.
    """
    from zeroconf import Error, ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

    finder = DiscoveredClusters()
    try:
        zeroconf = AsyncZeroconf(interfaces=list(interfaces)) if interfaces else AsyncZeroconf()
    except (OSError, Error) as error:
        logger.warning("cannot query this network for clusters: %s", error)
        yield finder
        return

    async def resolve(name: str) -> None:
        try:
            info = AsyncServiceInfo(SERVICE_TYPE, name)
            if await info.async_request(zeroconf.zeroconf, _QUERY_MS):
                addresses = _usable(info.parsed_addresses())
                finder.add(name, read_announcement(info.properties, addresses, info.port or 0))
        except Exception as error:  # anybody can send one, and it must not end the search
            logger.warning("an announcement cannot be read: %r", error)
        finally:
            resolving.pop(name, None)

    async with asyncio.TaskGroup() as tasks:

        def on_change(
            zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
        ) -> None:
            if state_change is ServiceStateChange.Removed:
                finder.remove(name)
            elif name not in resolving and len(resolving) < _MAX_NAMES:
                resolving[name] = tasks.create_task(resolve(name))

        resolving: dict[str, asyncio.Task[None]] = {}
        browser = AsyncServiceBrowser(zeroconf.zeroconf, [SERVICE_TYPE], handlers=[on_change])
        try:
            yield finder
        finally:
            await browser.async_cancel()
            for task in list(resolving.values()):
                task.cancel()
            await zeroconf.async_close()


def _usable(addresses: Sequence[str]) -> list[str]:
    """Return the addresses that are valid without an interface."""
    return [address for address in addresses if not ipaddress.ip_address(address).is_link_local]
