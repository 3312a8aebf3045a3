"""What all fault tests share: one load, and the truth about it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.client import connect
from tests.access.roles import as_client
from tests.faults.answers import Answer
from tests.faults.asks import Ask, mixed_asks
from tests.faults.lender import ClusterLender
from tests.faults.load import answers_alone
from tests.processes import ClusterProcess

STREAMS = 16


@pytest.fixture(scope="session")
def asks() -> list[Ask]:
    """The load of the fault tests, long enough that a fault hits it on its way."""
    return mixed_asks(STREAMS, shortest=60, longest=320)


@pytest.fixture(scope="session")
async def truths(tiny_cluster: ClusterProcess, asks: list[Ask]) -> list[Answer]:
    """The answers to `asks`, each given alone by an idle cluster."""
    async with connect(as_client(tiny_cluster.url)) as cluster:
        return await answers_alone(cluster, asks)


@pytest.fixture(scope="module")
def lender(tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[ClusterLender]:
    """With many rounds each test gets a cluster of its own: `cluster up` does not start the
    same process again for ever."""
    lender = ClusterLender(tiny_model, fresh=request.config.getoption("--fault-rounds") > 2)
    yield lender
    lender.close()


@pytest.fixture(scope="session")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for answers that take many seconds."""
    from tests.models import make_tiny_model

    folder = tmp_path_factory.mktemp("models") / "roomy"
    return make_tiny_model(folder, context_tokens=64 * 1024)
