"""A load, and the true answers to it."""

import pytest

from shared.client import connect
from tests.access.roles import as_client
from tests.faults.asks import Ask, mixed_asks
from tests.faults.load import answers_alone
from tests.faults.records import Answer
from tests.processes import ClusterProcess

STREAMS = 16


@pytest.fixture(scope="module")
def asks() -> list[Ask]:
    """So long that a fault hits it on its way."""
    return mixed_asks(STREAMS, shortest=60, longest=320)


@pytest.fixture(scope="module")
async def truths(tiny_cluster: ClusterProcess, asks: list[Ask]) -> list[Answer]:
    """The answers to `asks`, each given alone by an idle cluster."""
    async with connect(as_client(tiny_cluster.url)) as cluster:
        return await answers_alone(cluster, asks)
