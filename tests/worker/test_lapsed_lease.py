"""A worker that was away asks whose its streams are before it writes into them again."""

import asyncio
from collections.abc import AsyncIterator, Callable

import orjson
import pytest

from shared.bus import Bus, IncomingMessage
from shared.clock import boottime_s
from shared.codec import encode
from shared.ids import RequestId
from shared.messages.control import RequestState
from tests.worker.running_agent import CLIENT, LIMIT_S, RunningAgent
from tests.worker.streaming import Streaming, streaming

pytestmark = pytest.mark.anyio

Answer = Callable[[RequestId], RequestState]


class Leader:
    """Answers questions for the state of requests; keeps silent where it has no answer."""

    def __init__(self, bus: Bus) -> None:
        self.asked: list[RequestId] = []
        self.answer: Answer | None = None
        self._bus = bus

    async def on_question(self, message: IncomingMessage) -> None:
        request_id = RequestId(orjson.loads(message.payload)["request_id"])
        self.asked.append(request_id)
        if self.answer is not None:
            await self._bus.publish(message.reply, encode(self.answer(request_id)))

    def says(self, state: str, *, worker: str | None = None, attempt: int = 0) -> None:
        self.answer = lambda request_id: answer_of(request_id, worker, state, attempt)


def answer_of(request_id: RequestId, worker: str | None, state: str, attempt: int) -> RequestState:
    fields = {"controller": "c-1", "worker": worker, "attempt": attempt, "state": state}
    return RequestState.model_validate({"request_id": request_id, **fields})


@pytest.fixture
async def leader(slow: RunningAgent) -> AsyncIterator[Leader]:
    answering = Leader(slow.wire.bus)
    subscription = await slow.wire.bus.subscribe(
        f"mlx.request.{CLIENT}.status", answering.on_question
    )
    await slow.wire.bus.flush(timeout_s=LIMIT_S)
    yield answering
    await subscription.unsubscribe()
    await slow.wire.bus.flush(timeout_s=LIMIT_S)


@pytest.fixture
def lapse(slow: RunningAgent) -> Callable[[], None]:
    """Lets the lease run out, as if the worker had slept."""
    lease = slow.agent._lease

    def lapse() -> None:
        ahead_s = lease.now() - boottime_s() + 100
        lease._clock = lambda: boottime_s() + ahead_s
        assert not lease.is_valid(slow.agent._bus.connections)

    return lapse


async def lapsed(stream: Streaming, lapse: Callable[[], None]) -> int:
    """Let the lease run out; returns the number of messages that were sent before."""
    lapse()
    for _ in range(2):
        await stream.agent.settle()
    return len(stream.listener.messages)


@pytest.mark.parametrize(
    ("state", "worker", "attempt"),
    [
        ("failed", None, 0),
        ("finished", None, 0),
        ("accepted", None, 0),
        ("running", "another", 0),
        ("running", "another", 1),
        ("running", "this", 1),
        ("dispatching", "this", 1),
    ],
)
async def test_what_the_leader_ended_or_gave_to_another_attempt_is_dropped_without_a_word(
    slow: RunningAgent, leader: Leader, lapse: Callable[[], None],
    state: str, worker: str | None, attempt: int,
) -> None:  # fmt: skip
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(3)
        leader.says(state, worker=slow.id if worker == "this" else worker, attempt=attempt)
        before = await lapsed(stream, lapse)
        scheduler = slow.agent._scheduler
        async with asyncio.timeout(LIMIT_S):
            await scheduler.changes.wait_until(lambda: scheduler.idle)
        assert stream.request.fenced and scheduler.find((CLIENT, stream.id)) is None
        async with streaming(slow, max_tokens=3) as after:
            await after.listener.ended()
        assert len(stream.listener.messages) == before


@pytest.mark.parametrize("state", ["running", "dispatching", "finished", "failed"])
async def test_what_is_still_this_workers_goes_on(
    slow: RunningAgent, leader: Leader, lapse: Callable[[], None], state: str
) -> None:
    """Also what has ended here, by the leader's word: its client is yet to hear it."""
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(3)
        leader.says(state, worker=slow.id)
        before = await lapsed(stream, lapse)
        await stream.listener.has_tokens(before + 5)
        assert leader.asked == [stream.id], "it asks once"
        await stream.cancel()
        await stream.listener.ended()
        assert stream.listener.indexes() == list(range(len(stream.listener.token_ids())))


@pytest.mark.parametrize("state", ["unknown", "accepted", "running", "failed"])
async def test_an_attempt_that_the_leader_does_not_know_of_yet_is_still_this_workers(
    slow: RunningAgent, leader: Leader, lapse: Callable[[], None], state: str
) -> None:
    """It leads since a moment ago, or speaks of an attempt that had ended before."""
    async with streaming(slow, attempt=1002) as stream:
        await stream.listener.has_tokens(3)
        known = 0 if state == "unknown" else 1001
        leader.says(state, worker="another" if state == "running" else None, attempt=known)
        before = await lapsed(stream, lapse)
        await stream.listener.has_tokens(before + 5)
        assert leader.asked == [stream.id] and not stream.request.fenced


async def test_what_nobody_answers_for_stays_with_its_client(
    slow: RunningAgent, leader: Leader, lapse: Callable[[], None]
) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(3)
        before = await lapsed(stream, lapse)
        await stream.listener.has_tokens(before + 5)
        assert leader.asked == [stream.id]


async def test_where_no_controller_is_streams_go_on_at_once(
    slow: RunningAgent, lapse: Callable[[], None]
) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(3)
        before = await lapsed(stream, lapse)
        await stream.listener.has_tokens(before + 5)


async def test_each_stream_is_asked_after_by_itself(
    slow: RunningAgent, leader: Leader, lapse: Callable[[], None]
) -> None:
    async with streaming(slow) as lost, streaming(slow) as ours:
        await ours.listener.has_tokens(3)
        answers = {lost.id: (None, "failed", 0), ours.id: (slow.id, "running", 0)}
        leader.answer = lambda request_id: answer_of(request_id, *answers[request_id])
        before = await lapsed(ours, lapse)
        await ours.listener.has_tokens(before + 5)
        assert (lost.request.fenced, ours.request.fenced) == (True, False)


async def test_an_end_that_came_while_the_worker_was_away_is_not_sent_when_the_leader_ended_it(
    slow: RunningAgent, leader: Leader, lapse: Callable[[], None]
) -> None:
    leader.says("failed")
    lapse()
    async with streaming(slow, max_tokens=1) as stream:  # its first message is its end
        scheduler = slow.agent._scheduler
        async with asyncio.timeout(LIMIT_S):
            await scheduler.changes.wait_until(lambda: scheduler.idle)
        await slow.agent._publisher.drain(LIMIT_S)
        for _ in range(2):
            await slow.settle()
        assert stream.listener.messages == []


async def test_an_end_that_came_while_the_worker_was_away_is_sent_when_the_leader_has_it_from_there(
    slow: RunningAgent, leader: Leader, lapse: Callable[[], None]
) -> None:
    leader.says("finished", worker=slow.id)
    lapse()
    async with streaming(slow, max_tokens=1) as stream:
        await stream.listener.ended()
        assert leader.asked == [stream.id]
