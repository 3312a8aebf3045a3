"""Requests that no worker can take now: they wait, are tried again, and end in time."""

from collections.abc import AsyncIterator

import pytest

from controller.requests.events import EndRequests
from shared.bus import Bus
from shared.messages.stream import ErrorDetails
from shared.settings.nats import NatsSettings
from tests.controller.running import Running, running_state
from tests.controller.simulated_worker import SimulatedWorker, keep_silent, refuse
from tests.controller.values import models
from tests.controller.waiting import (
    FULL,
    ROOM,
    ROOM_FOR_ONE,
    Start,
    ask,
    ask_and_wait,
    hear_cancelled,
    hear_queued,
    request_in,
    runs,
    settled,
    starter,
    totals,
    view,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def start(nats_settings: NatsSettings, bus: Bus) -> Start:
    return starter(nats_settings, bus)


@pytest.fixture
async def cluster(start: Start) -> AsyncIterator[Running]:
    async with start() as running:
        yield running


# A worker that is away for a moment.


@pytest.mark.parametrize("says_so", [True, False])
async def test_without_the_only_worker_a_request_waits_until_it_is_back(
    cluster: Running, says_so: bool
) -> None:
    worker = await cluster.worker("w1")
    await worker.vanish()
    if says_so:
        await worker.say("left")
        await cluster.until(lambda: cluster.controller.report().workers == 0)
    inbox = await ask_and_wait(cluster)
    back = SimulatedWorker(cluster.bus, "w1", boot="b2")
    await back.join()
    assert (await back.next_dispatch()).request_id == "r"
    await runs(cluster, 0 if says_so else 1)
    await inbox.accepted()


async def test_what_the_only_worker_had_begun_goes_on_when_it_is_back(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await ask(cluster)
    await worker.emit(await worker.next_dispatch(), 0, 5, 6)
    await runs(cluster)
    await worker.vanish()
    await cluster.until(lambda: cluster.machine.waiting == 1)
    back = SimulatedWorker(cluster.bus, "w1", boot="b2")
    await back.join()
    dispatch = await back.next_dispatch()
    assert dispatch.resume is not None and dispatch.resume.token_ids == {0: [5, 6]}
    await runs(cluster, 1)
    assert {"accepted", "migrating"} == {one.status for one in inbox.rest_of_status()}
    assert cluster.controller.report().failed_requests == 0


async def test_what_is_said_late_of_an_attempt_that_was_given_up_changes_nothing(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    await ask(cluster)
    dispatch = await worker.next_dispatch()
    await runs(cluster)
    await worker.say("left")
    assert (await worker.next_cancel()).attempt == dispatch.attempt
    await cluster.until(lambda: cluster.machine.waiting == 1)
    await worker.fail(dispatch, terminal_sent=False)
    await worker.finish_unheard(dispatch)  # its last letter was not sent
    await cluster.settle()
    assert cluster.machine.waiting == 1 and request_in(cluster).failures.count == 1
    await worker.say("joined")
    assert (await worker.next_dispatch()).attempt == dispatch.attempt + 1
    await runs(cluster, 1)
    assert worker.unread == (0, 0)


async def test_a_worker_that_did_not_answer_is_asked_again_when_it_is_heard_of(
    start: Start,
) -> None:
    async with start(dispatch={"ack_timeout_ms": 100}) as cluster:
        worker = await cluster.worker("w1")
        worker.answer = keep_silent
        await ask_and_wait(cluster)
        await worker.next_dispatch()
        worker.answer = lambda dispatch: "accept"
        await worker.say("heartbeat")
        await worker.next_dispatch()
        await runs(cluster, 1)


async def test_a_worker_whose_machine_sleeps_is_asked_again_when_it_has_woken(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = refuse("draining", retry_after_ms=1000)
    await ask_and_wait(cluster)
    await worker.next_dispatch()
    worker.answer = lambda dispatch: "accept"
    await worker.say("state_changed", state="starting")
    await worker.say("state_changed", state="ready")
    await worker.next_dispatch()
    await runs(cluster, 1)


async def test_the_first_worker_is_waited_for_before_it_is_heard_of(start: Start) -> None:
    async with start(waiting_room={"max_wait_ms": 10}) as cluster:
        await ask_and_wait(cluster)
        worker = await cluster.worker("w1")
        await worker.next_dispatch()


async def test_a_worker_that_starts_is_waited_for_longer_than_there_is_room_to_wait(
    start: Start,
) -> None:
    async with start(waiting_room={"max_wait_ms": 10}) as cluster:
        worker = await cluster.worker("w1", state="starting")
        await settled(cluster)
        inbox = await ask_and_wait(cluster)
        await hear_queued(inbox)
        await worker.say("state_changed", state="warming")
        await worker.next_dispatch()


async def test_nobody_waits_longer_for_a_worker_that_turns_out_not_to_serve_it(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1", state="starting")
    await settled(cluster)
    inbox = await ask_and_wait(cluster)
    await worker.say("state_changed", state="ready", models=models(demo="failed"))
    assert (await inbox.end()).error.code == "model_unavailable"


async def test_who_does_not_come_back_in_time_is_not_waited_for_longer(start: Start) -> None:
    async with start(waiting_room={"max_wait_ms": 300}) as cluster:
        worker = await cluster.worker("w1")
        await worker.say("left")
        await cluster.until(lambda: cluster.controller.report().workers == 0)
        end = await (await ask_and_wait(cluster)).end()
        assert (end.error.code, end.error.retryable) == ("no_worker", True)
        assert "w1 ended a moment ago" in end.error.message


# Room.


async def test_a_request_for_a_full_worker_waits_and_goes_when_a_report_has_room(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1", **FULL)
    inbox = await ask_and_wait(cluster)
    assert (await hear_queued(inbox)).reason == "queue_full"
    assert worker.unread == (0, 0)
    await worker.say("heartbeat", **ROOM)
    dispatch = await worker.next_dispatch()
    assert (dispatch.request_id, dispatch.attempt) == ("r", cluster.first_attempt)
    assert cluster.machine.waiting == 0


async def test_high_goes_before_low_and_as_many_as_there_is_room_for(cluster: Running) -> None:
    worker = await cluster.worker("w1", **FULL)
    for level in ("low", "medium", "high"):
        await ask_and_wait(cluster, level, priority=level)
    for level in ("high", "medium", "low"):
        await worker.say("heartbeat", **ROOM_FOR_ONE)
        assert (await worker.next_dispatch()).request_id == level
        assert await running_state(cluster, level) == "running"
        assert worker.unread == (0, 0)


async def test_who_finds_no_room_in_time_is_told_when_to_come_again(start: Start) -> None:
    async with start(waiting_room={"max_wait_ms": 300}) as cluster:
        worker = await cluster.worker("w1", **FULL)
        inbox = await ask(cluster)
        end = await inbox.end()
        assert (end.error.code, end.error.retry_after_ms) == ("queue_full", 1000)
        assert end.error.retryable and "w1 has 10 requests queued" in end.error.message
        await worker.say("heartbeat", **ROOM)
        await cluster.settle()
        assert (inbox.rest(), worker.unread) == ([], (0, 0))
        assert (totals(cluster).waited, totals(cluster).unplaced) == (1, 1)


async def test_a_refusal_for_want_of_room_is_believed_until_the_next_report(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = refuse("queue_full", 700)
    inbox = await ask_and_wait(cluster)
    assert (await worker.next_dispatch()).attempt == cluster.first_attempt
    await hear_queued(inbox)
    assert worker.unread == (0, 0)
    await worker.say("heartbeat")
    assert (await worker.next_dispatch()).attempt == cluster.first_attempt + 1
    await cluster.until(lambda: cluster.machine.waiting == 1)
    worker.answer = lambda dispatch: "accept"
    await worker.say("heartbeat")
    assert (await worker.next_dispatch()).attempt == cluster.first_attempt + 2


async def test_a_refusal_is_the_reason_of_the_end_where_nothing_changes(start: Start) -> None:
    async with start(waiting_room={"max_wait_ms": 300}) as cluster:
        worker = await cluster.worker("w1")
        worker.answer = refuse("memory_pressure", 700)
        error = (await (await ask(cluster)).end()).error
        assert (error.code, error.retry_after_ms) == ("memory_pressure", 700)
        assert error.message == "it said memory_pressure"


async def test_what_does_not_pass_is_not_waited_for(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    await settled(cluster)
    worker.answer = refuse("context_length_exceeded")
    assert (await (await ask(cluster)).end()).error.code == "context_length_exceeded"
    await worker.say("state_changed", state="draining")
    await cluster.settle()
    assert (await (await ask(cluster, "other")).end()).error.code == "draining"
    assert totals(cluster).waited == 0


# Ends while it waits.


async def test_a_request_that_is_cancelled_while_it_waits_ends_as_cancelled(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1", **FULL)
    inbox = await ask_and_wait(cluster)
    await cluster.query("cancel", "r")
    await hear_cancelled(inbox)
    await worker.say("heartbeat", **ROOM)
    await cluster.settle()
    assert (inbox.rest(), worker.unread, cluster.machine.waiting) == ([], (0, 0), 0)


async def test_a_place_that_was_found_for_one_that_is_cancelled_before_it_is_sent_is_free_again(
    start: Start,
) -> None:
    """The first one goes at once, others are held for company."""
    async with start(dispatch={"min_hold_ms": 1000, "max_hold_ms": 1000}) as cluster:
        worker = await cluster.worker("w1", dispatches_per_message=8)
        await cluster.begin(request_id="first")
        await worker.next_dispatch()
        inbox = await ask(cluster, priority="low")
        await cluster.until(lambda: view(cluster, "w1").load == 2)
        await cluster.query("cancel", "r")
        await hear_cancelled(inbox)
        await cluster.settle()
        assert (view(cluster, "w1").load, worker.unread, inbox.rest()) == (1, (0, 0), [])


async def test_a_request_that_ends_while_it_waits_goes_nowhere(cluster: Running) -> None:
    worker = await cluster.worker("w1", **FULL)
    inbox = await ask_and_wait(cluster)
    leader = cluster.controller._leader
    assert leader is not None
    leader.handle(EndRequests(None, ErrorDetails.of("draining", "it shut down")))
    assert (await inbox.end()).error.code == "draining"
    assert cluster.machine.waiting == 0
    await worker.say("heartbeat", **ROOM)
    await cluster.settle()
    assert (inbox.rest(), worker.unread) == ([], (0, 0))
    assert (await cluster.query("status", "r")).state == "failed"


async def test_nobody_waits_past_its_deadline(cluster: Running) -> None:
    worker = await cluster.worker("w1", **FULL)
    inbox = await ask(cluster, timeout_ms=400)
    assert (await inbox.end()).error.code == "deadline_exceeded"
    await worker.say("heartbeat", **ROOM)
    await cluster.settle()
    assert (inbox.rest(), worker.unread) == ([], (0, 0))
