"""A client on a bad line gets every answer whole and exact."""

import asyncio
from collections import Counter

import pytest

from shared.client import connect
from tests.access.roles import as_client
from tests.faults.asks import Ask, mixed_asks
from tests.faults.load import Load, answers_alone, assert_exact, in_background
from tests.faults.records import DONE, Answer, Record
from tests.nats_proxy import Cut, Disturbance, NatsProxy
from tests.processes import ClusterProcess
from tests.tiers import long_form

pytestmark = pytest.mark.anyio
SECURED = False  # the line has to see the messages that it loses

LIMIT_S = 60
LOSSY = Disturbance(drop=0.05, double=0.05, reorder=0.05)


@pytest.fixture(scope="module")
def short_asks() -> list[Ask]:
    return mixed_asks(16, shortest=20, longest=60, seed=2)


@pytest.fixture(scope="module")
async def short_truths(tiny_cluster: ClusterProcess, short_asks: list[Ask]) -> list[Answer]:
    async with connect(as_client(tiny_cluster.url)) as cluster:
        return await answers_alone(cluster, short_asks)


def judge(records: list[Record], truths: list[Answer]) -> None:
    """All at once, so that a failure shows how many streams it concerns."""
    ends = Counter(record.end if not record.broken else str(record.broken) for record in records)
    assert ends == {DONE: len(records)}
    for record, truth in zip(records, truths, strict=True):
        assert_exact(record, truth)


@pytest.mark.parametrize("number", [0, long_form(1), long_form(2)])
async def test_lost_doubled_and_reordered_messages_change_no_answer(
    number: int,
    tiny_cluster: ClusterProcess,
    short_asks: list[Ask],
    short_truths: list[Answer],
    seed: int,
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        NatsProxy(tiny_cluster.url, disturbance=LOSSY, seed=100 * seed + number) as proxy,
        connect(as_client(proxy.url)) as cluster,
    ):
        records = await Load(short_asks).run(cluster)
    judge(records, short_truths)
    counters = proxy.counters
    assert min(counters.dropped, counters.doubled, counters.reordered) >= 5, counters


@pytest.mark.parametrize("how", ["reset", "end"])
async def test_a_connection_that_is_cut_and_comes_back_changes_no_answer(
    how: Cut, tiny_cluster: ClusterProcess, asks: list[Ask], truths: list[Answer]
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        NatsProxy(tiny_cluster.url) as proxy,
        connect(as_client(proxy.url)) as cluster,
    ):
        load = Load(asks)
        async with in_background(load.run(cluster)) as running:
            await load.until_tokens(300)
            await proxy.cut(how)
            records = await running
    assert proxy.counters.connections == 2
    judge(records, truths)


async def test_a_line_that_stalls_for_a_while_changes_no_answer(
    tiny_cluster: ClusterProcess, asks: list[Ask], truths: list[Answer]
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        NatsProxy(tiny_cluster.url) as proxy,
        connect(as_client(proxy.url)) as cluster,
    ):
        load = Load(asks)
        async with in_background(load.run(cluster)) as running:
            await load.until_tokens(300)
            proxy.stall()
            await asyncio.sleep(4)  # longer than the silence after which a client asks
            proxy.resume()
            judge(await running, truths)


async def test_a_line_that_stays_dead_ends_every_stream_in_a_retryable_error(
    tiny_cluster: ClusterProcess, asks: list[Ask]
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        NatsProxy(tiny_cluster.url) as proxy,
        connect(as_client(proxy.url)) as cluster,
    ):
        load = Load(asks)
        async with in_background(load.run(cluster)) as running:
            await load.until_tokens(300)
            proxy.refusing = True
            await proxy.cut()
            records = await running
        cut_off = [record for record in records if record.end != DONE]
        assert cut_off, "the line was cut too late"
        for record in cut_off:
            assert (record.end, record.retryable, record.broken) == ("disconnected", True, [])
            assert record.longest_wait_s > 4
