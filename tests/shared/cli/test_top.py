"""`cluster top` against a simulated cluster: printed, as JSON, and live on a real terminal."""

import asyncio
import json
import os
import signal
import sys

import pytest

from shared.ids import LOCAL_CLIENT
from tests.access.roles import environment
from tests.processes import NatsProcess
from tests.shared.cli.reports import ALL, IDLE, OVERLOADED, worker
from tests.shared.cli.simulated_cluster import LIMIT_S, ROOT, SimulatedCluster, run
from tests.shared.cli.terminal import Terminal

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("flags", [(), ("--once",)])
async def test_without_a_terminal_it_prints_one_frame(
    server: NatsProcess, cluster: SimulatedCluster, flags: tuple[str, ...]
) -> None:
    cluster.workers = ALL
    ran = await run("top", *flags, "--nats", server.url, columns=200)
    assert ran.status == 0 and ran.err == ""
    assert "\x1b" not in ran.out and "q quit" not in ran.out
    assert "18→16 9s ago" in ran.out


async def test_json_once_is_one_line_of_health(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [IDLE]
    ran = await run("top", "--json", "--once", "--nats", server.url)
    (line,) = ran.out.splitlines()
    assert json.loads(line)["workers"][0]["id"] == "mac-1"


async def test_json_is_a_line_for_each_interval(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [IDLE]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shared.cli", "top", "--json"),
        *("--interval", "0.2", "--nats", server.url),
        cwd=ROOT,
        env={**os.environ, **environment("admin", LOCAL_CLIENT, server.url)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        lines = [await process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert [json.loads(line)["status"] for line in lines] == ["ready"] * 3
    assert process.returncode == 130


@pytest.mark.parametrize("flags", [("--interval", "0.1"), ("--interval", "nan")])
async def test_a_bad_interval_is_refused(flags: tuple[str, ...]) -> None:
    ran = await run("top", *flags)
    assert ran.status == 2 and "--interval" in ran.err


async def test_without_nats_it_says_so_in_one_line_with_json_too() -> None:
    ran = await run("top", "--json", "--nats", "nats://127.0.0.1:1")
    assert ran.status == 1
    (line,) = ran.err.splitlines()
    assert "cannot reach NATS at nats://127.0.0.1:1" in line


async def test_on_a_terminal_it_renews_itself_and_obeys_keys(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [IDLE]
    async with Terminal("top", "--interval", "0.2", "--nats", server.url) as terminal:
        await terminal.shows("1/1 worker ready")
        cluster.workers = [IDLE, OVERLOADED]
        await terminal.shows("3/80/17")
        terminal.type("s")
        await terminal.shows("s sort: load")
        terminal.type("p")
        await terminal.shows("PAUSED")
        cluster.workers = [IDLE, worker("mac-9")]
        terminal.type("\x1b[A\x1bOqp")  # arrows and function keys are no letters
        await terminal.shows("mac-9")
        terminal.type("q")
        assert await terminal.ended() == 0
        await terminal.restored()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_it_and_the_terminal_is_restored(
    server: NatsProcess, cluster: SimulatedCluster, number: signal.Signals
) -> None:
    cluster.workers = [IDLE]
    async with Terminal("top", "--nats", server.url) as terminal:
        await terminal.shows("1/1 worker ready")
        terminal.signal(number)
        assert await terminal.ended() == 0
        await terminal.restored()


async def test_when_nobody_answers_the_last_frame_stays_with_the_reason(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [OVERLOADED]
    async with Terminal("top", "--interval", "0.2", "--nats", server.url) as terminal:
        await terminal.shows("3/80/17")
        server.kill()
        await terminal.shows("the connection to NATS is lost")
        await terminal.shows("3/80/17")
        await asyncio.to_thread(server.start)
        await terminal.shows("q quit", without="no answer for")
        terminal.signal(signal.SIGTERM)
        assert await terminal.ended() == 0
        await terminal.restored()


async def test_a_window_that_becomes_smaller_is_drawn_again(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [IDLE]
    async with Terminal("top", "--interval", "60", "--nats", server.url) as terminal:
        await terminal.shows("1/1 worker ready")
        terminal.resize(columns=60, lines=12)
        await terminal.shows("enlarge the window")
        terminal.type("q")
        assert await terminal.ended() == 0


async def test_stopped_and_continued_it_gives_and_takes_the_terminal(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [IDLE]
    async with Terminal("top", "--interval", "0.2", "--nats", server.url) as terminal:
        await terminal.shows("1/1 worker ready")
        terminal.signal(signal.SIGTSTP)
        await terminal.stopped()
        await terminal.restored()
        cluster.workers = [IDLE, OVERLOADED]
        terminal.signal(signal.SIGCONT)
        await terminal.shows("3/80/17")
        terminal.type("q")
        assert await terminal.ended() == 0
        await terminal.restored()
