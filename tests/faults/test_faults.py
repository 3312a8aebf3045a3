"""Engines, workers, controllers and the NATS server are killed or stopped under a load.

Every stream ends in its exact answer, or, where a controller or NATS is gone, in an error that says
"try again"; afterwards the cluster is whole again, and nothing has leaked.
"""

import asyncio
import random
import time

import psutil
import pytest

from shared.client import Cluster, connect
from tests.access.roles import as_client
from tests.faults.answers import DONE, Answer, Record
from tests.faults.asks import Ask
from tests.faults.faults import COMPONENTS, WAYS, Component, Fault, How, Pace, draw_fault, roles
from tests.faults.footprint import assert_back_to, footprints
from tests.faults.lender import ClusterLender
from tests.faults.load import Load, assert_exact, in_background
from tests.faults.raw import RawClient, RawStream, raw_client
from tests.faults.recovery import whole_again
from tests.processes import ClusterProcess

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(3600)]

RAW_STREAMS = 6
AFTERWARDS = 4
"""New requests after each round."""
SLACK_S = 3.0
LONGEST_WAIT_S: dict[Component, float] = {
    "engine": 10 + SLACK_S,  # its agent keeps the stream alive until it gives the engine up
    "worker": 8 + SLACK_S,
    "controller": 8 + SLACK_S,
    "nats": 8 + SLACK_S,
}
ROUND_LIMIT_S = 120.0


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("component", COMPONENTS)
async def test_streams_end_in_their_answer_or_in_a_retryable_error_and_all_recovers(
    component: Component,
    how: How,
    lender: ClusterLender,
    asks: list[Ask],
    truths: list[Answer],
    request: pytest.FixtureRequest,
) -> None:
    chance = random.Random(f"{request.config.getoption('--fault-seed')} {component} {how}")
    with lender.lend() as process:
        everyone = {"client": psutil.Process(), "cluster up": psutil.Process(process.process.pid)}
        async with connect(as_client(process.url)) as cluster, raw_client(process.url) as raw:
            await whole_again(process, asks, truths)
            before, tasks = footprints(everyone | roles(process)), len(asyncio.all_tasks())
            pace = Pace()
            for number in range(request.config.getoption("--fault-rounds")):
                fault = draw_fault(process, component, how, number, chance)
                await pace.wait(fault)
                async with asyncio.timeout(ROUND_LIMIT_S):
                    await one_round(process, cluster, raw, fault, asks, truths)
            await assert_back_to(before, tasks, lambda: footprints(everyone | roles(process)))


async def test_requests_sent_while_a_worker_is_replaced_end_once_each(
    lender: ClusterLender, asks: list[Ask], truths: list[Answer]
) -> None:
    """The new process listens on the old one's subject before anybody knows of it."""
    shortest = min(asks, key=lambda ask: ask.fields["max_tokens"])
    with lender.lend() as process:
        await whole_again(process, asks[:AFTERWARDS], truths[:AFTERWARDS])
        async with raw_client(process.url) as raw, asyncio.timeout(ROUND_LIMIT_S):
            fault = Fault("worker", "kill", roles(process)["worker-2"], share=0, stop_s=0)
            await fault.strike()
            streams: list[RawStream] = []
            for _ in range(45):  # until well after its silence has been noticed
                streams.append(await raw.ask(shortest))
                await asyncio.sleep(0.1)
            await judge_ends(fault, streams)
            await whole_again(process, asks[:AFTERWARDS], truths[:AFTERWARDS])
    for stream in streams:
        assert len(stream.terminals) == 1, f"{fault}: {stream.said()}"
        assert "error" not in stream.terminals[0], f"{fault}: {stream.said()}"


async def one_round(
    process: ClusterProcess,
    cluster: Cluster,
    raw: RawClient,
    fault: Fault,
    asks: list[Ask],
    truths: list[Answer],
) -> None:
    """One fault under load, and the recovery from it."""
    load = Load(asks)
    async with in_background(load.run(cluster)) as running:
        longest = sorted(asks, key=lambda ask: -ask.fields["max_tokens"])
        observed = [await raw.ask(ask) for ask in longest[:RAW_STREAMS]]
        await load.until_tokens(int(fault.share * sum(map(tokens_of, truths))))
        under_way = [stream for stream in observed if stream.tokens and not stream.ended]
        struck_at = time.monotonic()
        await fault.strike()
        records = await running
    judge_streams(fault, struck_at, records, truths)
    if fault.component != "nats":  # whose end makes any message vanish, for a client by hand
        await judge_ends(fault, under_way)
    await whole_again(process, asks[:AFTERWARDS], truths[:AFTERWARDS])
    for stream in observed:
        await stream.unsubscribe()
    twice = [stream.said() for stream in observed if len(stream.terminals) > 1]
    assert not twice, f"{fault}: two ends on the wire: {twice}"


def judge_streams(
    fault: Fault, struck_at: float, records: list[Record], truths: list[Answer]
) -> None:
    """All that the client library promises."""
    assert max(record.ended_at for record in records) > struck_at, f"{fault} came too late"
    for record, truth in zip(records, truths, strict=True):
        assert record.end is not None and not record.broken, f"{fault}: {record.broken}"
        goes_on = fault.component in ("engine", "worker")  # at the other one
        assert record.end == DONE or (record.retryable and not goes_on), (
            f"{fault}: {record.name}: {record.end}"
        )
        assert record.longest_wait_s <= LONGEST_WAIT_S[fault.component], (
            f"{fault}: {record.name} heard nothing for {record.longest_wait_s:.1f} s, "
            f"and ended with {record.end}"
        )
        assert_exact(record, truth)


async def judge_ends(fault: Fault, streams: list[RawStream]) -> None:
    """A stream that had begun gets an end on the wire, without its client doing anything."""
    for stream in streams:
        try:
            async with asyncio.timeout(LONGEST_WAIT_S[fault.component]):
                await stream.changes.wait_until(lambda one=stream: one.ended)  # type: ignore[misc]
        except TimeoutError:
            raise AssertionError(f"{fault}: no end on the wire: {stream.said()}") from None


def tokens_of(answer: Answer) -> int:
    return sum(map(len, answer.token_ids.values()))
