"""Connections of commands to a cluster."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import uvloop
from pydantic import SecretStr

from shared.access.member_credentials import MemberCredentials
from shared.access.stored_memberships import membership
from shared.cli.local.addresses import stored_token
from shared.cli.options import read_settings
from shared.cli.wait_notice import WAITING, wait_notice
from shared.client import Cluster, connect
from shared.errors import BusError, BusPermissionDenied, BusUnreachable
from shared.settings.nats import NatsSettings

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
    settings = read_settings(config, nats, token, command="cluster")
    server = settings.nats
    if server.token is None and (local := stored_token(server.servers[0])) is not None:
        server = server.model_copy(update={"token": SecretStr(local)})
    return _connected(server, settings.security.client)


def with_cluster(
    config: Path | None,
    nats: str | None,
    token: str | None,
    work: Callable[[Cluster], Awaitable[T]],
    *,
    shows_progress: bool = False,
) -> T:
    """Connect as `cluster_connection` does, and return the result of `work`.

    Args:
        shows_progress: whether `work` itself shows that it is waiting; else a notice says so.

    Raises:
        SettingsError, BusUnreachable, and what `work` raises.
    """
    connection = cluster_connection(config, nats, token)

    async def connected() -> T:
        async with connection as cluster:
            if shows_progress:
                return await work(cluster)
            async with wait_notice(WAITING):
                return await work(cluster)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(connected())


def service_membership() -> MemberCredentials | None:
    """Return the membership of a worker, controller or gateway on this machine.

    None if there is none, or if `cluster` itself has joined a cluster.

    Raises:
        SettingsError: a stored membership cannot be read.
    """
    if membership("cluster") is not None:
        return None
    members = (membership(program) for program in ("worker", "controller", "gateway"))
    return next((member for member in members if member is not None), None)


@asynccontextmanager
async def _connected(server: NatsSettings, client: str) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        try:
            async with wait_notice(f"Still trying to connect to {', '.join(server.servers)} ..."):
                cluster = await stack.enter_async_context(connect(server, client=client))
        except (BusUnreachable, BusPermissionDenied) as error:
            raise _explained(error) from None
        yield cluster


def _explained(error: BusError) -> BusError:
    """Return the error; on a machine that joined as a worker, say what its key does not permit."""
    member = service_membership()
    if member is None:
        return error
    message = (
        f"this machine joined {', '.join(member.servers)} as the {member.role} {member.name}, "
        "whose key permits neither requests nor questions about the whole cluster. To use the "
        "cluster from here, run `cluster auth add client NAME` on the machine that has the "
        "cluster's keys, "
        f"and `cluster join` here with the token that it prints ({error.message})"
    )
    return type(error)(message, code=error.code)
