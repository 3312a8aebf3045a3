"""A command that waits for more than a second says so, to people only."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.ids import WorkerId
from tests.processes import NatsProcess
from tests.shared.cli.reports import IDLE, warm, worker
from tests.shared.cli.simulated_cluster import SimulatedCluster, run
from tests.shared.cli.terminal import Terminal

pytestmark = pytest.mark.anyio

CONNECTING = "Still trying to connect to nats://127.0.0.1:"
WAITING = "Still waiting for an answer from the cluster"


@pytest.fixture
async def silent_server() -> AsyncIterator[str]:
    """The URL of a server that accepts connections and says nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for writer in writers:
        writer.close()
    server.close()


async def test_who_waits_for_a_connection_is_told(silent_server: str) -> None:
    async with Terminal("status", "--nats", silent_server) as terminal:
        await terminal.wrote(CONNECTING)
        assert await terminal.ended() == 1
        await terminal.wrote("cannot reach NATS")


async def test_who_waits_for_an_answer_is_told(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [worker(models=[warm()])]
    cluster.silent = {WorkerId("mac-1")}
    async with Terminal("models", "unload", "demo", "--nats", server.url) as terminal:
        await terminal.wrote(WAITING)
        assert await terminal.ended() == 1


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_programs_are_not_told(silent_server: str, flags: tuple[str, ...]) -> None:
    ran = await run("status", *flags, "--nats", silent_server)
    assert ran.status == 1 and "Still" not in ran.err


async def test_json_on_a_terminal_has_no_notice(silent_server: str) -> None:
    async with Terminal("status", "--json", "--nats", silent_server) as terminal:
        await terminal.wrote('"error"')
        assert await terminal.ended() == 1
        assert not terminal.has_written(CONNECTING)


async def test_a_fast_answer_has_no_notice(server: NatsProcess, cluster: SimulatedCluster) -> None:
    cluster.workers = [IDLE]
    async with Terminal("status", "--nats", server.url) as terminal:
        await terminal.wrote("controller-1")
        assert await terminal.ended() == 0
