"""Hears which clusters tell of themselves."""

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator, Sequence

from shared.discovery.announcement import SERVICE_TYPE, Announcement, read_announcement

logger = logging.getLogger(__name__)

_ASK_MS = 10_000
"""zeroconf repeats the question every second or so: one lost packet loses no cluster."""
_MOST_NAMES = 256
"""Anybody may announce; no more are remembered."""


class Finder:
    """Clusters that were heard of, and not that they are gone."""

    def __init__(self) -> None:
        self._by_name: dict[str, Announcement] = {}

    @property
    def clusters(self) -> list[Announcement]:
        """One for each, by name."""
        each = {announcement.id: announcement for announcement in self._by_name.values()}
        return sorted(each.values(), key=lambda found: (found.cluster, found.id))

    def heard(self, name: str, announcement: Announcement | None) -> None:
        if announcement is not None and len(self._by_name) < _MOST_NAMES:
            self._by_name[name] = announcement

    def gone(self, name: str) -> None:
        self._by_name.pop(name, None)


@contextlib.asynccontextmanager
async def finding(interfaces: Sequence[str]) -> AsyncIterator[Finder]:
    """Meanwhile the network is asked, and what it answers is in the finder. Where it cannot be,
    nothing is found, and the log says so.

    Args:
        interfaces: addresses of this machine on whose networks it asks; by default all.
    """
    from zeroconf import Error, ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

    finder = Finder()
    try:
        zeroconf = AsyncZeroconf(interfaces=list(interfaces)) if interfaces else AsyncZeroconf()
    except (OSError, Error) as error:
        logger.warning("this network cannot be asked for clusters: %s", error)
        yield finder
        return

    async def look(name: str) -> None:
        try:
            info = AsyncServiceInfo(SERVICE_TYPE, name)
            if await info.async_request(zeroconf.zeroconf, _ASK_MS):
                addresses = _usable(info.parsed_addresses())
                finder.heard(name, read_announcement(info.properties, addresses, info.port or 0))
        except Exception as error:  # whatever a stranger sends, nobody else is kept from starting
            logger.warning("an announcement cannot be read: %r", error)
        finally:
            looking.pop(name, None)

    async with asyncio.TaskGroup() as tasks:

        def on_change(
            zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
        ) -> None:
            if state_change is ServiceStateChange.Removed:
                finder.gone(name)
            elif name not in looking and len(looking) < _MOST_NAMES:
                looking[name] = tasks.create_task(look(name))

        looking: dict[str, asyncio.Task[None]] = {}
        browser = AsyncServiceBrowser(zeroconf.zeroconf, [SERVICE_TYPE], handlers=[on_change])
        try:
            yield finder
        finally:
            await browser.async_cancel()
            for task in list(looking.values()):
                task.cancel()
            await zeroconf.async_close()


def _usable(addresses: Sequence[str]) -> list[str]:
    """Those that need no interface to be named."""
    return [address for address in addresses if not ipaddress.ip_address(address).is_link_local]
