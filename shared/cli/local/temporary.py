"""A temporary cluster on this machine for one piece of work."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.cli.local.cluster import LocalCluster, LocalPlan
from shared.cli.local.serving import run_supervised, wait_until_ready
from shared.client import Cluster, connect
from shared.messages.health import ClusterHealth
from shared.settings import ClusterSettings

T = TypeVar("T")


async def run_in_cluster(
    plan: LocalPlan,
    settings: ClusterSettings,
    work: Callable[[Cluster, ClusterHealth], Awaitable[T]],
    *,
    show: Callable[[ClusterHealth], None],
    print_status: Callable[[str], None],
) -> T:
    """Start a cluster, run `work` once all its workers are ready, and stop the cluster.

    All processes have ended when this returns, raises, or is cancelled.

    Args:
        show: called with the health until the workers are ready.
        print_status: called with a line when a process is restarted.

    Raises:
        ClusterError: the cluster does not start, or a process ended too often.
        Exception: what `work` raises.
    """
    local = LocalCluster(plan, settings, print_status)

    async def connected() -> T:
        async with connect(local.client) as cluster:
            return await work(cluster, await wait_until_ready(cluster, local.worker_ids, show))

    try:
        await local.start()
        result = await run_supervised(local, connected())
        await local.stop()
        return result
    finally:
        await local.kill()  # does nothing after stop()
