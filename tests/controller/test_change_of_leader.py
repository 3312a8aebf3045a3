"""What workers have, and had, when another controller begins to lead."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.bus import Bus
from shared.client import connect
from shared.ids import LOCAL_CLIENT, RequestId
from shared.messages.dispatch import Dispatch
from shared.messages.stream import StatusMessage, Usage
from shared.settings.nats import NatsSettings
from shared.telemetry import Span, Tracer
from tests.access.roles import as_client
from tests.controller.inbox import Inbox
from tests.controller.pair import SECOND, Pair, running_pair
from tests.controller.running import Running
from tests.controller.simulated_streams import spoken
from tests.controller.simulated_worker import SimulatedWorker

pytestmark = pytest.mark.anyio

FULL = {"active_requests": 8, "queued_requests": 10}
ROOM = {"active_requests": 0, "queued_requests": 0}
PATIENT_ROOM = {"max_wait_ms": 60_000}
ENDS = pytest.mark.parametrize("how", ["it leaves", "it dies"])


@pytest.fixture
async def pair(nats_settings: NatsSettings, bus: Bus) -> AsyncIterator[Pair]:
    async with running_pair(nats_settings, bus, waiting_room=PATIENT_ROOM) as pair:
        yield pair


async def begun(
    pair: Pair, worker: SimulatedWorker, *token_ids: int, **body: Any
) -> tuple[Inbox, Dispatch]:
    """A request that a worker has begun to answer, as the leader knows."""
    inbox = await pair.ask(request_id="r", **body)
    await inbox.accepted()
    dispatch = await worker.next_dispatch()
    await worker.emit(dispatch, 0, *token_ids)
    await pair.first.settle()
    return inbox, dispatch


async def change_leader(pair: Pair, how: str = "it leaves") -> Running:
    """Return when the second one leads."""
    await (pair.first.leave() if how == "it leaves" else pair.first.die())
    await pair.second.until(lambda: pair.second.serves)
    return pair.second


async def take_over(pair: Pair, *workers: SimulatedWorker, how: str = "it leaves") -> Running:
    """Return when it has claimed the workers, too."""
    leader = await change_leader(pair, how)
    for worker in workers:
        await leader.until_claimed(worker)
    return leader


async def adopted(leader: Running) -> Running:
    """Return when it knows all that a worker has of the request."""
    key = LOCAL_CLIENT, RequestId("r")
    await leader.until(
        lambda: (found := leader.machine.find(key)) is not None and found.request is not None
    )
    return leader


async def ends_once(inbox: Inbox, leader: Running) -> None:
    await inbox.done()
    await leader.settle()
    assert inbox.rest() == []


# Streams that run.


@ENDS
async def test_a_stream_that_runs_goes_on_and_ends_once(pair: Pair, how: str) -> None:
    worker = await pair.worker("w1")
    inbox, dispatch = await begun(pair, worker, 1, 2)
    leader = await adopted(await take_over(pair, worker, how=how))
    await worker.emit(dispatch, 2, 3)
    await leader.settle()
    state = await pair.query("status", "r")
    assert (state.controller, state.worker, state.state) == (SECOND, "w1", "running")
    assert (state.attempt, state.tokens) == (dispatch.attempt, 3)
    await worker.end(dispatch, spoken(3, finish_reason="stop"), usage=Usage(5, 1, 3))
    await ends_once(inbox, leader)
    report = leader.controller.report()
    assert (report.adoptions, report.accepted_requests, report.completed_requests) == (1, 0, 1)
    assert worker.unread == (0, 0)


@ENDS
async def test_a_stream_that_was_taken_over_goes_on_elsewhere_when_its_worker_leaves(
    pair: Pair, how: str
) -> None:
    worker = await pair.worker("w1")
    other = await pair.worker("w2", active_requests=5)
    inbox, dispatch = await begun(pair, worker, 1, 2)
    leader = await adopted(await take_over(pair, worker, other, how=how))
    await worker.say("left")
    again = await other.next_dispatch()
    assert again.resume is not None and again.resume.token_ids == {0: [1, 2]}
    assert (again.seed, again.inboxes) == (dispatch.seed, [inbox.subject])
    assert (again.attempt > dispatch.attempt, again.migrations) == (True, 1)
    assert again.elapsed_ms > dispatch.elapsed_ms
    await other.end(again, spoken(2, 3, finish_reason="stop"), usage=Usage(5, 1, 3))
    await ends_once(inbox, leader)


@ENDS
async def test_a_trace_goes_on_under_the_next_leader(
    nats_settings: NatsSettings, bus: Bus, how: str
) -> None:
    spans: list[Span] = []
    trace_id, parent = "a" * 32, "c" * 16
    headers = {"traceparent": f"00-{trace_id}-{parent}-01", "tracestate": "x=1"}
    tracer = Tracer(spans.append)
    async with running_pair(nats_settings, bus, tracer=tracer, waiting_room=PATIENT_ROOM) as traced:
        worker = await traced.worker("w1")
        other = await traced.worker("w2", active_requests=5)
        inbox = await traced.first.ask_with(headers, request_id="r")
        await inbox.accepted()
        dispatch = await worker.next_dispatch()
        await worker.emit(dispatch, 0, 1, 2)
        await traced.first.settle()
        leader = await adopted(await take_over(traced, worker, other, how=how))
        await worker.say("left")
        again = await other.next_dispatch()
        assert dispatch.trace is not None and again.trace is not None
        assert again.trace.traceparent == dispatch.trace.traceparent
        await other.end(again, spoken(2, 3, finish_reason="stop"), usage=Usage(5, 1, 3))
        await ends_once(inbox, leader)
    assert {(span.trace_id, span.tracestate) for span in spans} == {(trace_id, "x=1")}
    (request,) = [span for span in spans if span.name == "request"]
    first, second = [span for span in spans if span.name == "attempt"]
    assert (request.parent_id, request.span_id) == (parent, dispatch.trace.span_id)
    assert {span.parent_id for span in (first, second)} == {request.span_id}
    assert first.span_id == dispatch.trace.attempt_id(dispatch.attempt)
    assert second.span_id == again.trace.attempt_id(again.attempt)
    assert (first.error, second.linked_ids) == ("worker_lost", (first.span_id,))
    assert request.started_at <= first.started_at <= first.ended_at <= second.started_at
    assert len({span.span_id for span in spans}) == len(spans)


async def test_what_a_worker_gave_back_while_nobody_led_goes_on_elsewhere(pair: Pair) -> None:
    worker = await pair.worker("w1")
    other = await pair.worker("w2", active_requests=5)
    inbox, dispatch = await begun(pair, worker, 1, 2)
    await pair.first.die()
    await worker.fail(dispatch, terminal_sent=False)
    await take_over(pair, worker, other, how="it dies")
    again = await other.next_dispatch()
    assert again.resume is not None and again.resume.token_ids == {0: [1, 2]}
    assert (again.attempt > dispatch.attempt, again.retries) == (True, 1)
    await other.finish(again)
    await inbox.done()


async def test_what_a_worker_had_that_is_gone_too_runs_again_when_it_is_published_again(
    pair: Pair,
) -> None:
    worker = await pair.worker("w1")
    _, dispatch = await begun(pair, worker, 1)
    await worker.vanish()
    await pair.first.die()
    await worker.say("left")
    leader = await change_leader(pair, "it dies")
    other = await leader.worker("w2")
    inbox = await pair.ask(request_id="r")
    again = await other.next_dispatch()
    assert (again.attempt, again.seed) == (leader.first_attempt, dispatch.seed)
    await other.finish(again)
    await ends_once(inbox, leader)


@ENDS
async def test_a_stream_that_had_ended_is_sent_again_by_its_worker(pair: Pair, how: str) -> None:
    worker = await pair.worker("w1")
    inbox, dispatch = await begun(pair, worker, 1)
    await worker.finish(dispatch)
    await inbox.done()
    await take_over(pair, worker, how=how)
    assert (await pair.query("status", "r")).state == "finished"
    again = await pair.ask(request_id="r")
    order = await worker.next_attached()
    assert (order.attempt, order.inbox) == (dispatch.attempt, again.subject)
    await pair.second.settle()
    assert (again.rest(), worker.unread) == ([], (0, 0))


async def test_what_is_published_again_before_its_worker_has_told_is_attached_there(
    pair: Pair,
) -> None:
    worker = await pair.worker("w1")
    _, dispatch = await begun(pair, worker, 1)
    worker.answers_claims.clear()
    leader = await change_leader(pair)
    again = await pair.ask(request_id="r")
    await leader.settle()
    worker.answers_claims.set()
    await leader.until_claimed(worker)
    order = await worker.next_attached()
    assert (order.attempt, order.inbox) == (dispatch.attempt, again.subject)
    await leader.settle()
    assert worker.unread == (0, 0)


async def test_what_began_anew_before_its_worker_had_told_is_dropped_there(pair: Pair) -> None:
    worker = await pair.worker("w1")
    other = await pair.worker("w2", active_requests=5)
    _, before = await begun(pair, worker, 1)
    worker.answers_claims.clear()
    leader = await take_over(pair, other)
    inbox = await pair.ask(request_id="r")
    dispatch = await other.next_dispatch()
    assert (dispatch.attempt, dispatch.seed) == (leader.first_attempt, before.seed)
    worker.answers_claims.set()
    await leader.until_claimed(worker)
    order = await worker.next_cancel()
    assert (order.request_id, order.attempt, order.silent) == ("r", before.attempt, True)
    await other.finish(dispatch)
    await ends_once(inbox, leader)


# What waits for workers to tell.


async def test_a_request_waits_a_moment_for_workers_that_have_not_told_yet(pair: Pair) -> None:
    """One of them may have it: what is said meanwhile has a lower attempt than any worker's."""
    silent = await pair.worker("w1")
    other = await pair.worker("w2", active_requests=5)
    silent.answers_claims.clear()
    leader = await take_over(pair, other)
    inbox = await pair.ask(request_id="r")
    assert await inbox.next() == StatusMessage(
        RequestId("r"), 0, None, "queued", reason="leader_change"
    )
    assert (await other.next_dispatch()).attempt == leader.first_attempt
    assert silent.unread == (0, 0)


async def test_a_turn_waits_until_every_worker_has_told_or_is_gone(pair: Pair) -> None:
    silent = await pair.worker("w1")
    other = await pair.worker("w2", active_requests=5)
    silent.answers_claims.clear()
    leader = await take_over(pair, other)
    await pair.ask(request_id="turn", session_id="s")
    await pair.ask(request_id="single")
    assert (await other.next_dispatch()).request_id == "single"
    await leader.settle()
    assert other.unread == (0, 0)
    await silent.say("left")
    assert (await other.next_dispatch()).request_id == "turn"


@ENDS
async def test_a_turn_waits_for_the_turn_before_that_a_worker_has(pair: Pair, how: str) -> None:
    worker = await pair.worker("w1")
    _, before = await begun(pair, worker, 1, session_id="s")
    inbox = await pair.ask(request_id="next", session_id="s")
    await pair.first.until(lambda: pair.first.machine.active == 2)
    leader = await take_over(pair, worker, how=how)
    if how == "it dies":
        inbox = await pair.ask(request_id="next", session_id="s")
    await leader.until(lambda: leader.machine.active == 2)
    assert worker.unread == (0, 0)
    await worker.finish_unheard(before)
    dispatch = await worker.next_dispatch()
    assert (dispatch.request_id, dispatch.attempt) == ("next", leader.first_attempt)
    await worker.finish(dispatch)
    await ends_once(inbox, leader)


# Lists.


async def test_a_list_of_which_a_worker_has_a_part_is_transferred_and_told_whole(
    pair: Pair, nats_settings: NatsSettings
) -> None:
    worker = await pair.worker("w1", max_batch_size=1)
    async with connect(as_client(nats_settings.servers[0])) as client:
        stream = client.stream(prompt=["prompt 0", "prompt 1"], request_id="r", seed=5)
        answer = asyncio.create_task(stream.collect())
        part = await worker.next_dispatch()
        await worker.speak(part, 0, 1)
        await pair.first.settle()
        await take_over(pair, worker)
        assert (await worker.next_attached()).request_id == part.request_id
        await worker.speak(part, 0, 1)
        await worker.end(part, spoken(1, finish_reason="stop"), usage=Usage(5, 1, 1))
        other = await worker.next_dispatch()
        assert other.request.prompt == "prompt 1"
        await worker.answer_all(other, 7)
        completion = await asyncio.wait_for(answer, 10)
        assert [choice.token_ids for choice in completion.choices] == [[1], [7]]
        assert worker.unread == (0, 0)
