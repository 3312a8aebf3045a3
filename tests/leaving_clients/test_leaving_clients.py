"""A client that leaves without a word: what it asked for stops, what others asked for goes on.

After how many seconds it stops is tested with a given clock:
tests/shared/test_stream_subscribers.py."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shared.client import Cluster, connect
from shared.errors import ClusterError
from tests.access.roles import as_client
from tests.faults.asks import ENDLESS, Ask
from tests.faults.load import Load, answers_alone, assert_exact, in_background
from tests.faults.records import DONE, Answer, Record
from tests.leaving_clients.client_process import leaving_process
from tests.leaving_clients.observer import WorkerObserver
from tests.nats_proxy import NatsProxy
from tests.processes import ClusterProcess, cluster_process
from tests.raw_client import RawClient, raw_client

pytestmark = pytest.mark.anyio

SECURED = False  # no client may hear what workers tell the leader

WORKER = "worker-1"
SLOTS = 2
LIMIT_S = 60
VERY_LONG = 40_000
"""Tokens; the answer takes far longer than any test."""
OTHER = Ask(
    "the other",
    {"prompt": "It stays.", "max_tokens": 1200, "temperature": 0.7, "seed": 11,
     "logit_bias": ENDLESS},
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(roomy_model: Path) -> Iterator[ClusterProcess]:
    """One worker with two slots."""
    settings = {"CLUSTER__WORKER__CONTINUOUS_BATCHING__MAX_BATCH_SIZE": str(SLOTS)}
    with cluster_process(workers=1, model=str(roomy_model), settings=settings) as process:
        yield process


@pytest.fixture(scope="module")
async def truth(cluster: ClusterProcess) -> Answer:
    async with connect(as_client(cluster.url)) as client:
        return (await answers_alone(client, [OTHER]))[0]


@pytest.fixture
async def raw(cluster: ClusterProcess) -> AsyncIterator[RawClient]:
    async with raw_client(cluster.url) as client:
        yield client


@pytest.fixture
async def worker(raw: RawClient) -> AsyncIterator[WorkerObserver]:
    """Idle at first, and made idle again whatever a test left there."""
    observer = WorkerObserver(raw, WORKER)
    await observer.watch()
    yield observer
    for request_id in await observer.requests():
        await raw.request(f"mlx.worker.{WORKER}.control.cancel", _cancel(request_id))
    await observer.until(lambda health, requests: not (requests or has(health)), "idle again")


def has(health: dict[str, Any]) -> int:
    """How many requests the worker has, queued ones too."""
    return int(health["active_requests"] + health["queued_requests"])


def _cancel(request_id: str) -> dict[str, object]:
    return {"protocol": 1, "request_id": request_id, "client": "local"}


def very_long(name: str) -> Ask:
    fields = {"prompt": "It leaves.", "max_tokens": VERY_LONG, "logit_bias": ENDLESS}
    return Ask(name, fields)


@asynccontextmanager
async def undisturbed(cluster: ClusterProcess, truth: Answer) -> AsyncIterator[None]:
    """Another stream runs meanwhile, and gets its exact answer without a pause."""
    async with connect(as_client(cluster.url)) as client:
        load = Load([OTHER])
        async with in_background(load.run(client)) as running:
            await load.until_tokens(1)
            yield
            (record,) = await running
    _judge(record, truth)


def _judge(record: Record, truth: Answer) -> None:
    assert (record.end, record.broken) == (DONE, [])
    assert_exact(record, truth)
    assert record.longest_wait_s < LIMIT_S / 4


async def assert_stops(worker: WorkerObserver, request_id: str) -> None:
    """From the leader's view, the agent's and the engine's."""
    await worker.until(
        lambda health, requests: request_id not in requests and has(health) <= len(requests),
        "it stops",
    )
    await worker.until(
        lambda health, requests: (
            sum(engine["active_sequences"] for engine in health["engines"]) <= len(requests)
        ),
        "its sequence leaves the engine",
    )
    assert worker.tokens[request_id] < VERY_LONG // 2


async def test_a_stream_stops_when_the_process_of_its_client_is_killed(
    cluster: ClusterProcess, worker: WorkerObserver, truth: Answer
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        leaving_process(cluster.url, "killed", VERY_LONG) as process,
    ):
        await worker.generates("killed")
        async with undisturbed(cluster, truth):
            process.kill()
            await assert_stops(worker, "killed")


async def test_a_stream_stops_when_the_connection_of_its_client_is_cut(
    cluster: ClusterProcess, worker: WorkerObserver, truth: Answer
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        NatsProxy(cluster.url) as proxy,
        connect(as_client(proxy.url)) as client,
        in_background(_stream(client, "cut")),
    ):
        await worker.generates("cut")
        async with undisturbed(cluster, truth):
            proxy.refusing = True
            await proxy.cut()
            await assert_stops(worker, "cut")


async def test_a_stream_stops_when_its_client_no_longer_listens(
    cluster: ClusterProcess, raw: RawClient, worker: WorkerObserver, truth: Answer
) -> None:
    async with asyncio.timeout(LIMIT_S):
        stream = await raw.ask(very_long("unsubscribes"))
        await worker.generates(stream.request_id)
        async with undisturbed(cluster, truth):
            await stream.unsubscribe()
            await assert_stops(worker, stream.request_id)
        await worker.until(lambda health, _: not health["active_requests"], "idle")


async def test_a_queued_request_goes_when_its_client_no_longer_listens(
    raw: RawClient, worker: WorkerObserver
) -> None:
    async with asyncio.timeout(LIMIT_S):
        running = [await raw.ask(very_long(f"running {number}")) for number in range(SLOTS)]
        for stream in running:
            await worker.generates(stream.request_id)
        waiting = await raw.ask(very_long("waiting"))
        await worker.until(lambda health, _: health["queued_requests"] == 1, "it is queued")
        await waiting.unsubscribe()
        await worker.until(
            lambda health, requests: (
                waiting.request_id not in requests and not health["queued_requests"]
            ),
            "it leaves the queue",
        )
        assert {stream.request_id for stream in running} <= await worker.requests()
        assert waiting.request_id not in worker.tokens


async def _stream(client: Cluster, request_id: str) -> None:
    fields = very_long(request_id).fields
    with suppress(ClusterError):
        async for _ in client.stream(**fields, request_id=request_id):
            pass
