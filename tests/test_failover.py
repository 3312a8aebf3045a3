"""Streams outlive their controller and then their worker: real processes, killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from shared.client import Cluster, connect
from shared.errors import Unavailable
from shared.messages.health import ClusterHealth
from tests.access.roles import as_client, environment
from tests.faults.answers import DONE, Answer
from tests.faults.asks import ENDLESS, Ask
from tests.faults.faults import roles
from tests.faults.load import Load, assert_exact, in_background
from tests.models import make_tiny_model
from tests.processes import SCRIPTS, ClusterProcess, cluster_process

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

STREAMS = 4
TOKENS = 6000
"""So many that the streams last longer than it takes to find out that a controller is gone."""
LIMIT_S = 60
_CONTEXT = 16_384
ASKS = [
    Ask(
        f"ask {number}",
        {
            "prompt": f"{number}. salt and stone",
            "max_tokens": TOKENS,
            "seed": number,
            "temperature": 0.8 * (number % 2),
            "logit_bias": ENDLESS,
            "timeout_ms": 600_000,
        },
    )
    for number in range(STREAMS)
]
_SETTINGS = {"CLUSTER__CONTROLLER__FAILOVER__HEARTBEAT_INTERVAL_MS": "500"}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Two workers, and a controller that is started again when it ends."""
    folder = tmp_path_factory.mktemp("models") / "roomy"
    model = str(make_tiny_model(folder, context_tokens=_CONTEXT))
    with cluster_process(workers=2, model=model, settings=_SETTINGS) as process:
        yield process


@pytest.fixture(scope="module")
async def truths(process: ClusterProcess) -> list[Answer]:
    async with connect(as_client(process.url)) as cluster:
        return [record.answer() for record in await Load(ASKS).run(cluster)]


@contextlib.contextmanager
def more_controllers(cluster: ClusterProcess, count: int) -> Iterator[None]:
    """Beside the one that `cluster up` started, with the same settings."""
    first = roles(cluster)["controller-1"].environ()
    settings = {name: value for name, value in first.items() if name.startswith("CLUSTER__")}
    names = [f"controller-{number}" for number in range(2, 2 + count)]
    commands = [[str(SCRIPTS / "controller"), "--nats", cluster.url, "--id", id] for id in names]
    processes = [
        subprocess.Popen(
            command,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **settings, **environment("controller", name)},
        )
        for name, command in zip(names, commands, strict=True)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


async def until(cluster: Cluster, condition: Callable[[ClusterHealth], bool]) -> ClusterHealth:
    """The state of the cluster, once it fulfils a condition."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(Unavailable):  # the only controller may just start again
                health = await cluster.health()
                if condition(health):
                    return health
            await asyncio.sleep(0.1)


def owned(health: ClusterHealth) -> int:
    return sum(one.active_requests for one in health.controllers)


def adopted(health: ClusterHealth) -> int:
    return sum(one.adoptions for one in health.controllers)


def is_whole(health: ClusterHealth, controllers: int) -> bool:
    ready = [worker for worker in health.workers if worker.state == "ready"]
    return (len(ready), len(health.controllers)) == (2, controllers)


@contextlib.asynccontextmanager
async def streaming(
    process: ClusterProcess, truths: list[Answer], others: int
) -> AsyncIterator[tuple[Cluster, Load]]:
    """Streams that are under way; in the end all have their whole answers."""
    with more_controllers(process, others):
        async with connect(as_client(process.url)) as cluster:
            await until(cluster, lambda health: is_whole(health, 1 + others))
            load = Load(ASKS)
            async with in_background(load.run(cluster)) as running:
                await load.until_tokens(STREAMS * 20)
                await until(cluster, lambda health: owned(health) == STREAMS)
                yield cluster, load
                records = await running
    for record, truth in zip(records, truths, strict=True):
        assert record.end == DONE, f"{record.name}: {record.end}"
        assert_exact(record, truth)


async def test_streams_survive_the_end_of_their_controller_and_then_of_their_worker(
    process: ClusterProcess, truths: list[Answer]
) -> None:
    """Some are adopted by the other controller, some by the one that is started instead."""
    async with streaming(process, truths, others=1) as (cluster, load):
        before = await until(
            cluster, lambda health: is_whole(health, 2) and owned(health) == STREAMS
        )  # as one says it who knows the other
        (first,) = [one for one in before.controllers if one.id == "controller-1"]
        orphans = first.active_requests
        roles(process)["controller-1"].kill()
        await until(cluster, lambda health: (owned(health), adopted(health)) == (STREAMS, orphans))
        assert not any(record.end for record in load.records), "the streams were too short"
        roles(process)["worker-1"].kill()


async def test_streams_survive_the_end_of_their_only_controller_and_of_their_worker_at_once(
    process: ClusterProcess, truths: list[Answer]
) -> None:
    async with streaming(process, truths, others=0) as (_, load):
        victims = roles(process)
        assert not any(record.end for record in load.records), "the streams were too short"
        victims["controller-1"].kill()
        victims["worker-1"].kill()
