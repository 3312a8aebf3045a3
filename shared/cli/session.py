"""Connecting from a command line."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import uvloop

from shared.cli.options import read_settings
from shared.client import Cluster, connect

T = TypeVar("T")


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
    settings = read_settings(config, nats, token)

    async def connected() -> T:
        async with connect(settings.nats) as cluster:
            return await work(cluster)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(connected())
