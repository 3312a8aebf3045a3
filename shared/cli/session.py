"""Connecting from a command line."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import uvloop
from pydantic import SecretStr

from shared.cli.local.kept import kept_token
from shared.cli.options import read_settings
from shared.client import Cluster, connect
from shared.settings.tree import Nats

T = TypeVar("T")


def connection_settings(config: Path | None, nats: str | None, token: str | None) -> Nats:
    """The settings of the connection; a cluster of this machine needs no token typed."""
    settings = read_settings(config, nats, token).nats
    if settings.token is None and (kept := kept_token(settings.servers[0])) is not None:
        return settings.model_copy(update={"token": SecretStr(kept)})
    return settings


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
    settings = connection_settings(config, nats, token)

    async def connected() -> T:
        async with connect(settings) as cluster:
            return await work(cluster)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(connected())
