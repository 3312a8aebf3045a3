"""`cluster status` against a simulated cluster."""

import json

import pytest
from click.testing import CliRunner

from shared.cli.status import command
from shared.cli.views.workers import worker_table
from shared.codec import encode
from tests.processes import NatsProcess
from tests.shared.cli.reports import ALL, IDLE, OVERLOADED, STRANGE, WARMING
from tests.shared.cli.reports import cluster as health_of
from tests.shared.cli.simulated_cluster import SimulatedCluster, run

pytestmark = pytest.mark.anyio


async def test_it_prints_what_is_wrong_within_80_columns(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = ALL
    ran = await run("status", "--nats", server.url)
    assert ran.status == 0 and ran.err == ""
    assert "mac-3: queue 100/100: 47 rejected" in ran.out
    assert "[red]x[/red]" in ran.out and "\x1b" not in ran.out


async def test_json_is_the_whole_health(server: NatsProcess, cluster: SimulatedCluster) -> None:
    cluster.workers = [WARMING, STRANGE]
    ran = await run("status", "--json", "--nats", server.url)
    assert json.loads(ran.out) == json.loads(encode(health_of(WARMING, STRANGE)))


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_the_exit_status_says_whether_a_worker_is_ready(
    server: NatsProcess, cluster: SimulatedCluster, flags: tuple[str, ...]
) -> None:
    for workers, status in (([], 1), ([WARMING], 1), ([WARMING, IDLE], 0)):
        cluster.workers = workers
        ran = await run("status", *flags, "--nats", server.url)
        assert (ran.status, ran.err) == (status, "")
        assert "controller-1" in ran.out


def test_the_help_explains_every_column_of_workers() -> None:
    full = OVERLOADED.model_copy(update={"config_version": 3})
    titles = worker_table([full], 300)[0].plain.split()
    explained = [
        line.split()[0]
        for line in CliRunner().invoke(command, ["--help"]).output.splitlines()
        if line
    ]
    unexplained = set(titles) - set(explained)
    assert unexplained == {"worker", "device", "up"}, "what is plain"
