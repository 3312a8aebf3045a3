"""Streams outlive their controller and then their worker: real processes, killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from shared.client import Cluster, connect
from shared.errors import Unavailable
from shared.messages.events import ControllerReport
from tests.faults.answers import DONE
from tests.faults.asks import ENDLESS, Ask
from tests.faults.faults import roles
from tests.faults.load import Load, assert_exact, in_background
from tests.models import make_tiny_model
from tests.processes import SCRIPTS, ClusterProcess, cluster_process

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

STREAMS = 4
TOKENS = 3000
"""So many that the streams last longer than it takes to find out that a controller is gone."""
LIMIT_S = 60
_CONTEXT = 16_384


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "roomy"
    return make_tiny_model(folder, context_tokens=_CONTEXT)


@contextlib.contextmanager
def more_controllers(cluster: ClusterProcess, count: int) -> Iterator[None]:
    """Beside the one that `cluster up` started, with the same settings."""
    first = roles(cluster)["controller-1"].environ()
    settings = {name: value for name, value in first.items() if name.startswith("CLUSTER__")}
    names = [f"controller-{number}" for number in range(2, 2 + count)]
    commands = [[str(SCRIPTS / "controller"), "--nats", cluster.url, "--id", id] for id in names]
    processes = [
        subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, **settings})
        for command in commands
    ]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


async def until(
    cluster: Cluster, condition: Callable[[Sequence[ControllerReport]], bool]
) -> Sequence[ControllerReport]:
    """What the controllers say of themselves, once that fulfils a condition."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(Unavailable):  # the only one may just start again
                controllers = (await cluster.health()).controllers
                if condition(controllers):
                    return controllers
            await asyncio.sleep(0.1)


def owned(controllers: Iterable[ControllerReport]) -> int:
    return sum(one.active_requests for one in controllers)


def adopted(controllers: Iterable[ControllerReport]) -> int:
    return sum(one.adoptions for one in controllers)


@pytest.mark.parametrize("others", [0, 1], ids=["the same again", "another one"])
async def test_streams_survive_the_end_of_their_controller_and_then_of_their_worker(
    roomy_model: Path, others: int
) -> None:
    asks = [
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
    with cluster_process(workers=2, model=str(roomy_model)) as process:
        with more_controllers(process, others):
            async with connect(process.url) as cluster:
                await until(cluster, lambda told: len(told) == 1 + others)
                truths = [record.answer() for record in await Load(asks).run(cluster)]
                load = Load(asks)
                async with in_background(load.run(cluster)) as running:
                    await load.until_tokens(STREAMS * 20)
                    told = await until(cluster, lambda told: owned(told) == STREAMS)
                    orphans = owned(one for one in told if one.id == "controller-1")
                    roles(process)["controller-1"].kill()
                    await until(
                        cluster,
                        lambda told: owned(told) == STREAMS and adopted(told) == orphans,
                    )
                    assert not running.done(), "the streams were too short"
                    roles(process)["worker-1"].kill()
                    records = await running
    for record, truth in zip(records, truths, strict=True):
        assert record.end == DONE, f"{record.name}: {record.end}"
        assert_exact(record, truth)
