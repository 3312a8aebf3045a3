"""Connecting from a command line."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import uvloop
from pydantic import SecretStr

from shared.cli.local.kept import kept_token
from shared.cli.options import read_settings
from shared.client import Cluster, connect

T = TypeVar("T")
Session = AbstractAsyncContextManager[Cluster]


def session(config: Path | None, nats: str | None, token: str | None) -> Session:
    """A connection as the flags and settings say, or to the cluster that this machine joined; one
    that runs on this machine needs no token typed.

    Raises:
        SettingsError: there is something wrong with them. BusUnreachable: when it is entered.
    """
    settings = read_settings(config, nats, token, seat="cluster")
    connection = settings.nats
    if connection.token is None and (kept := kept_token(connection.servers[0])) is not None:
        connection = connection.model_copy(update={"token": SecretStr(kept)})
    return connect(connection, client=settings.security.client)


def with_cluster(
    config: Path | None,
    nats: str | None,
    token: str | None,
    work: Callable[[Cluster], Awaitable[T]],
) -> T:
    """Connect as the flags and settings say, and run `work`.

    Raises:
        SettingsError, BusUnreachable, and what `work` raises.
    """
    connecting = session(config, nats, token)

    async def connected() -> T:
        async with connecting as cluster:
            return await work(cluster)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(connected())
