"""Selects the cluster of a worker that has no configured NATS server."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from shared.discovery.announcement import ClusterAnnouncement
from shared.discovery.discovered_clusters import DiscoveredClusters, discovering
from shared.errors import SettingsError
from shared.settings.nats import DiscoverySettings, NatsSettings
from shared.settings.tree import ClusterSettings

_POLL_S = 1.0
"""Replies arrive within 1.2 s; the selection uses the first result that two polls agree on."""
_CONNECT_S = 0.5


def is_server_unset(settings: ClusterSettings) -> bool:
    """Whether no file, variable, flag or membership sets the NATS servers."""
    return settings.discovery.enabled and "nats" not in settings.model_fields_set


async def select_servers(
    discovery: DiscoverySettings, local: NatsSettings, notify: Callable[[str], None]
) -> list[str]:
    """Return the server on this machine if it listens; else those of the only announced cluster.
    Waits until there is either.

    Args:
        local: the default settings.
        notify: gets messages for people.

    Raises:
        SettingsError: several clusters are announced, or one that requires a secret: an
            announcement is no reason to send a secret to it.
    """
    if await _listens(local.servers[0]):
        return local.servers
    async with discovering(discovery.interfaces) as finder:
        found = await _wait_for_clusters(finder, local.servers[0], notify)
    if not found:
        return local.servers
    chosen = select_cluster(found)
    notify(
        f"no NATS server on this machine; following the cluster {format_cluster(chosen)}, which "
        "announces itself. To choose another: --nats, or --no-discovery"
    )
    return list(chosen.servers)


async def _wait_for_clusters(
    finder: DiscoveredClusters, local: str, notify: Callable[[str], None]
) -> Sequence[ClusterAnnouncement]:
    """Return the clusters once there are some; none once the local server listens."""
    before: Sequence[ClusterAnnouncement] | None = None
    notified = False
    while True:
        await asyncio.sleep(_POLL_S)
        if await _listens(local):
            return ()
        now = finder.clusters
        if now and now == before:
            return now
        if before == [] and not notified:
            notified = True
            notify(
                f"no NATS server at {local}, and no cluster announces itself on this network; "
                "waiting for either. `worker join` with a token, or --nats, names one"
            )
        before = now


def select_cluster(found: Sequence[ClusterAnnouncement]) -> ClusterAnnouncement:
    """Return the only cluster.

    Raises:
        SettingsError: as `select_servers`.
    """
    if len(found) > 1:
        listed = "".join(f"\n  {format_cluster(each)}" for each in found)
        raise SettingsError(
            f"several clusters announce themselves; name one with --nats, or join it:{listed}"
        )
    (cluster,) = found
    server = cluster.servers[0]
    match cluster.access:
        case "open":
            return cluster
        case "token":
            raise SettingsError(
                f"the cluster {cluster.cluster} at {server} asks for a token, which `cluster up` "
                f"shows there: worker --nats {server} --token TOKEN"
            )
        case "keys":
            raise SettingsError(
                f"the cluster {cluster.cluster} at {server} asks for keys. Where it was set up: "
                "cluster auth add worker NAME; then here: worker join"
            )


def format_cluster(found: ClusterAnnouncement) -> str:
    """Return a line for people."""
    return f"{found.cluster} ({found.access}) at {', '.join(found.servers)}"


async def _listens(server: str) -> bool:
    parts = urlsplit(server)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            return True
    return False
