"""Connections of commands to a cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import uvloop
from pydantic import SecretStr

from shared.cli.local.stored import stored_token
from shared.cli.options import read_settings
from shared.client import Cluster, connect

T = TypeVar("T")
ClusterConnection = AbstractAsyncContextManager[Cluster]


def cluster_connection(
    config: Path | None, nats: str | None, token: str | None
) -> ClusterConnection:
    """Return the connection of the options and settings, else to the cluster that was joined here.

    The token of a cluster that runs on this machine is read from its folder.

    Raises:
        SettingsError: an option or setting is invalid.
        BusUnreachable: no server answers; raised when the connection is entered.
    """
    settings = read_settings(config, nats, token, seat="cluster")
    server = settings.nats
    if server.token is None and (local := stored_token(server.servers[0])) is not None:
        server = server.model_copy(update={"token": SecretStr(local)})
    return connect(server, client=settings.security.client)


def with_cluster(
    config: Path | None,
    nats: str | None,
    token: str | None,
    work: Callable[[Cluster], Awaitable[T]],
) -> T:
    """Connect as `cluster_connection` does, and return the result of `work`.

    Raises:
        SettingsError, BusUnreachable, and what `work` raises.
    """
    connection = cluster_connection(config, nats, token)

    async def connected() -> T:
        async with connection as cluster:
            return await work(cluster)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(connected())
