"""`cluster status` against a simulated cluster."""

import json

import pytest

from shared.codec import encode
from tests.processes import NatsProcess
from tests.shared.cli.reports import ALL, STRANGE, WARMING
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
