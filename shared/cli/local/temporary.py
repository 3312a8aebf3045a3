"""A cluster on this machine for one piece of work."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.cli.local.cluster import LocalCluster, LocalPlan
from shared.cli.local.serving import wait_until_ready, while_watched
from shared.client import Cluster, connect
from shared.messages.health import ClusterHealth
from shared.settings import ClusterSettings

T = TypeVar("T")


async def in_cluster(
    plan: LocalPlan,
    settings: ClusterSettings,
    work: Callable[[Cluster, ClusterHealth], Awaitable[T]],
    *,
    show: Callable[[ClusterHealth], None],
    say: Callable[[str], None],
) -> T:
    """Start a cluster, `work` in it once all its workers are ready, and stop it.

    Whatever goes wrong, and when this is cancelled, all processes have ended afterwards.

    Args:
        show: called with each health until the workers are ready.
        say: told of processes that are started again.

    Raises:
        ClusterError: the cluster does not start, or something of it ended too often.
        Exception: what `work` raises.
    """
    local = LocalCluster(plan, settings, say)

    async def connected() -> T:
        async with connect(local.client) as cluster:
            return await work(cluster, await wait_until_ready(cluster, local.worker_ids, show))

    try:
        await local.start()
        result = await while_watched(local, connected())
        await local.stop()
        return result
    finally:
        await local.kill()  # nothing is left to it where all has stopped
