"""Requests that no worker can take now: they wait, are tried again, and end in time."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from controller.fleet.circuit_breaker import CircuitBreaker
from controller.fleet.worker_view import WorkerView
from controller.owned_request import OwnedRequest
from controller.requests.waiting_room import WaitingRoom
from shared.bus import Bus
from shared.ids import WorkerId
from shared.messages.events import WorkerEvent
from shared.messages.stream import Done, Status
from shared.settings.tree import Nats
from tests.controller.running import CONTROLLER, Inbox, Running, running_controller, running_state
from tests.controller.simulated_worker import SimulatedWorker, keep_silent, refuse
from tests.controller.values import models, report

pytestmark = pytest.mark.anyio

FULL: dict[str, Any] = {"active_requests": 8, "queued_requests": 10}
ROOM_FOR_ONE: dict[str, Any] = {"active_requests": 8, "queued_requests": 9}
ROOM: dict[str, Any] = {"active_requests": 0, "queued_requests": 0}
PATIENT_ROOM = {"max_wait_ms": 60_000}
SETTLES_SOON = {"heartbeat_interval_ms": 200, "missed_heartbeats": 100}
"""Soon after its start the controller has heard all workers there are."""

Start = Callable[..., "contextlib.AbstractAsyncContextManager[Running]"]


@pytest.fixture
def start(nats_settings: Nats, bus: Bus) -> Start:
    """A controller in which requests wait."""

    def started(**sections: Any) -> contextlib.AbstractAsyncContextManager[Running]:
        defaults = {"failover": SETTLES_SOON, "waiting_room": PATIENT_ROOM}
        sections = {**defaults, **sections}
        return running_controller(nats_settings, bus, name=CONTROLLER, **sections)

    return started


@pytest.fixture
async def cluster(start: Start) -> AsyncIterator[Running]:
    async with start() as running:
        yield running


def room(cluster: Running) -> WaitingRoom[Any]:
    return cluster.controller._requests._dispatcher.waiting


def view(cluster: Running, worker: str) -> WorkerView:
    found = cluster.controller._registry.worker(WorkerId(worker))
    assert found is not None
    return found


def breaker(cluster: Running, worker: str) -> CircuitBreaker:
    found = view(cluster, worker).breaker
    assert found is not None
    return found


def request_in(cluster: Running) -> OwnedRequest:
    (request,) = cluster.controller._requests._ledger.active
    return request


async def ask(cluster: Running, request_id: str = "r", **body: Any) -> Inbox:
    return await cluster.begin(request_id=request_id, **body)


async def ask_and_wait(cluster: Running, request_id: str = "r", **body: Any) -> Inbox:
    """Return when the request waits for room, behind those before it."""
    before = len(room(cluster))
    inbox = await ask(cluster, request_id, **body)
    await cluster.until(lambda: len(room(cluster)) == before + 1)
    return inbox


async def runs(cluster: Running, attempt: int = 0) -> None:
    """Return when the controller knows that a worker has the only request."""
    await cluster.until(
        lambda: (request_in(cluster).state, request_in(cluster).attempt) == ("running", attempt)
    )


async def hear_queued(inbox: Inbox) -> None:
    """By then the controller has looked several times whether there is room."""
    message = await inbox.next()
    assert isinstance(message, Status) and (message.status, message.worker) == ("queued", None)


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
    await cluster.until(lambda: request_in(cluster).state == "running")
    assert inbox.rest() == []


async def test_what_the_only_worker_had_begun_goes_on_when_it_is_back(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await ask(cluster)
    await worker.emit(await worker.next_dispatch(), 0, 5, 6)
    await runs(cluster)
    await worker.vanish()
    await cluster.until(lambda: len(room(cluster)) == 1)
    back = SimulatedWorker(cluster.bus, "w1", boot="b2")
    await back.join()
    dispatch = await back.next_dispatch()
    assert dispatch.resume is not None and dispatch.resume.token_ids == {0: [5, 6]}
    await runs(cluster, dispatch.attempt)
    while (message := await inbox.next()) is not None and not isinstance(message, Status):
        pass
    assert cluster.controller.report().failed_requests == 0


async def test_what_is_said_late_of_an_attempt_that_was_given_up_changes_nothing(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    await ask(cluster)
    dispatch = await worker.next_dispatch()
    await runs(cluster)
    await worker.say("left")
    assert (await worker.next_cancel()).attempt == 0
    await cluster.until(lambda: len(room(cluster)) == 1)
    await worker.fail(dispatch, terminal_sent=False)
    await worker.finish_unheard(dispatch)  # its last letter was not sent
    await cluster.settle()
    assert len(room(cluster)) == 1 and request_in(cluster).failures == 1
    await worker.say("joined")
    assert (await worker.next_dispatch()).attempt == 1
    await runs(cluster, attempt=1)
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
        assert (await worker.next_dispatch()).attempt == 1
        await runs(cluster, attempt=1)


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
    assert (await worker.next_dispatch()).attempt == 1
    await runs(cluster, attempt=1)


async def test_the_first_worker_is_waited_for_before_it_is_heard_of_and_while_it_starts(
    start: Start,
) -> None:
    async with start(waiting_room={"max_wait_ms": 500}) as cluster:
        await ask_and_wait(cluster)
        worker = await cluster.worker("w1", state="starting")
        await cluster.until(lambda: room(cluster).came == 2)  # its half second is over
        await worker.say("state_changed", state="warming")
        await worker.next_dispatch()


async def test_nobody_waits_longer_for_a_worker_that_turns_out_not_to_serve_it(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1", state="starting")
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
    await hear_queued(inbox)
    assert worker.unread == (0, 0)
    await worker.say("heartbeat", **ROOM)
    dispatch = await worker.next_dispatch()
    assert (dispatch.request_id, dispatch.attempt) == ("r", 0)
    assert len(room(cluster)) == 0


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
        assert (room(cluster).came, room(cluster).left) == (1, 1)


async def test_a_refusal_for_want_of_room_is_believed_until_the_next_report(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = refuse("queue_full", 700)
    inbox = await ask_and_wait(cluster)
    assert (await worker.next_dispatch()).attempt == 0
    await hear_queued(inbox)
    assert worker.unread == (0, 0)
    await worker.say("heartbeat")
    assert (await worker.next_dispatch()).attempt == 1
    await cluster.until(lambda: len(room(cluster)) == 1)
    worker.answer = lambda dispatch: "accept"
    await worker.say("heartbeat")
    assert (await worker.next_dispatch()).attempt == 2


async def test_a_refusal_is_the_reason_of_the_end_where_nothing_changes(start: Start) -> None:
    async with start(waiting_room={"max_wait_ms": 300}) as cluster:
        worker = await cluster.worker("w1")
        worker.answer = refuse("memory_pressure", 700)
        error = (await (await ask(cluster)).end()).error
        assert (error.code, error.retry_after_ms) == ("memory_pressure", 700)
        assert error.message == "it said memory_pressure"


async def test_what_does_not_pass_is_not_waited_for(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = refuse("context_length_exceeded")
    assert (await (await ask(cluster)).end()).error.code == "context_length_exceeded"
    await worker.say("state_changed", state="draining")
    await cluster.settle()
    assert (await (await ask(cluster, "other")).end()).error.code == "draining"
    assert room(cluster).came == 0


# Ends while it waits.


async def test_a_request_that_is_cancelled_while_it_waits_ends_as_cancelled(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1", **FULL)
    inbox = await ask_and_wait(cluster)
    await cluster.query("cancel", "r")
    end = await inbox.next()
    assert isinstance(end, Done) and end.outputs[0].finish_reason == "cancelled"
    await worker.say("heartbeat", **ROOM)
    await cluster.settle()
    assert (inbox.rest(), worker.unread, len(room(cluster))) == ([], (0, 0), 0)


async def test_a_place_that_is_found_for_one_just_cancelled_is_free_again(cluster: Running) -> None:
    worker = await cluster.worker("w1", **FULL)
    inbox = await ask_and_wait(cluster)
    with_room = WorkerEvent(type="heartbeat", worker=report("w1", **ROOM))
    cluster.controller._registry.on_worker_event(with_room, time.monotonic())
    room(cluster)._look_now()
    assert view(cluster, "w1").load == 1
    await cluster.controller._requests.cancel(request_in(cluster))
    assert isinstance(await inbox.next(), Done)
    await cluster.settle()
    assert (view(cluster, "w1").load, worker.unread, inbox.rest()) == (0, (0, 0), [])


async def test_a_request_that_ends_while_it_waits_goes_nowhere(cluster: Running) -> None:
    worker = await cluster.worker("w1", **FULL)
    inbox = await ask_and_wait(cluster)
    await cluster.controller._requests.fail_all("draining", "it shut down")
    assert (await inbox.end()).error.code == "draining"
    assert len(room(cluster)) == 0
    await worker.say("heartbeat", **ROOM)
    await cluster.settle()
    assert (inbox.rest(), worker.unread) == ([], (0, 0))
    assert (await cluster.query("status", "r")).state == "failed"


async def test_nobody_waits_past_its_deadline(cluster: Running) -> None:
    worker = await cluster.worker("w1", **FULL)
    inbox = await ask(cluster, timeout_ms=400)
    assert (await inbox.end()).error.code == "queue_full"
    await worker.say("heartbeat", **ROOM)
    await cluster.settle()
    assert (inbox.rest(), worker.unread) == ([], (0, 0))


# Breakers.


async def _fail_by_silence(worker: SimulatedWorker) -> None:
    await worker.next_dispatch()
    await worker.next_cancel()


async def _fail_by_crash(worker: SimulatedWorker) -> None:
    await worker.fail(await worker.next_dispatch(), terminal_sent=False)


@pytest.mark.parametrize("how", ["silence", "crash"])
async def test_a_worker_that_fails_often_is_left_alone(start: Start, how: str) -> None:
    """What fails within a tenth of a second would be one event: acks and retries take longer."""
    async with start(
        dispatch={"ack_timeout_ms": 1000 if how == "silence" else 10_000},
        retry={"initial_delay_ms": 150, "jitter": 0},
        circuit_breaker={"failure_threshold": 2, "recovery_timeout_ms": 60_000},
    ) as cluster:
        bad = await cluster.worker("w1")
        good = await cluster.worker("w2", active_requests=5)
        if how == "silence":
            bad.answer = keep_silent
        for request_id in ("r1", "r2"):
            await ask(cluster, request_id)
            await (_fail_by_silence if how == "silence" else _fail_by_crash)(bad)
            dispatch = await good.next_dispatch()
            assert (dispatch.request_id, dispatch.attempt) == (request_id, 1)
        assert breaker(cluster, "w1").state(time.monotonic()) == "open"
        await ask(cluster, "r3")
        dispatch = await good.next_dispatch()
        assert (dispatch.request_id, dispatch.attempt, bad.unread) == ("r3", 0, (0, 0))


async def test_refusals_open_no_breaker(start: Start) -> None:
    async with start(circuit_breaker={"failure_threshold": 1}) as cluster:
        worker = await cluster.worker("w1")
        worker.answer = refuse("queue_full")
        await ask_and_wait(cluster)
        assert breaker(cluster, "w1").state(time.monotonic()) == "closed"


BREAKS_AT_ONCE = {
    "retry": {"enabled": False},
    "circuit_breaker": {
        "failure_threshold": 1,
        "recovery_timeout_ms": 60_000,
        "half_open_success_threshold": 2,
    },
}


async def _opened(cluster: Running) -> SimulatedWorker:
    """A worker whose breaker opened at its first failure, and that works again."""
    worker = await cluster.worker("w1")
    inbox = await ask(cluster, "lost")
    await _fail_by_crash(worker)
    assert (await inbox.end()).error.code == "engine_crashed"
    return worker


def _let_recover(cluster: Running) -> None:
    """As if its time were over."""
    assert breaker(cluster, "w1").state(time.monotonic()) == "open"
    breaker(cluster, "w1")._reopens_at = 0.0


async def test_while_all_breakers_are_open_requests_wait_and_go_one_by_one_then(
    start: Start,
) -> None:
    async with start(**BREAKS_AT_ONCE) as cluster:
        worker = await _opened(cluster)
        inboxes = {name: await ask_and_wait(cluster, name) for name in ("r1", "r2", "r3")}
        await hear_queued(inboxes["r1"])
        assert worker.unread == (0, 0)
        _let_recover(cluster)
        first = await worker.next_dispatch()
        assert first.request_id == "r1"
        for _ in range(2):  # one may have come before
            await hear_queued(inboxes["r2"])
        assert worker.unread == (0, 0)
        assert breaker(cluster, "w1").state(time.monotonic()) == "half-open"
        await worker.emit(first, 0, 1)
        second = await worker.next_dispatch()
        assert second.request_id == "r2"
        await worker.finish(second)
        assert (await worker.next_dispatch()).request_id == "r3"
        assert breaker(cluster, "w1").state(time.monotonic()) == "closed"


async def test_where_the_trial_fails_too_the_next_one_waits_for_another(start: Start) -> None:
    async with start(**BREAKS_AT_ONCE) as cluster:
        worker = await _opened(cluster)
        first, second = [await ask_and_wait(cluster, name) for name in ("r1", "r2")]
        _let_recover(cluster)
        await _fail_by_crash(worker)
        assert (await first.end()).error.code == "engine_crashed"
        await hear_queued(second)
        assert (breaker(cluster, "w1").opened, worker.unread) == (2, (0, 0))
        _let_recover(cluster)
        assert (await worker.next_dispatch()).request_id == "r2"


async def test_who_waits_in_vain_for_a_breaker_is_told_when_it_may_close(start: Start) -> None:
    async with start(**BREAKS_AT_ONCE, waiting_room={"max_wait_ms": 300}) as cluster:
        worker = await _opened(cluster)
        error = (await (await ask(cluster)).end()).error
        assert (error.code, error.retryable) == ("circuit_open", True)
        assert error.retry_after_ms is not None and 1000 < error.retry_after_ms <= 60_000
        assert worker.unread == (0, 0)


# Retries.


async def test_what_a_lost_worker_had_goes_to_another_one_after_a_pause(start: Start) -> None:
    async with start(retry={"initial_delay_ms": 300, "multiplier": 2, "jitter": 0}) as cluster:
        workers = {
            name: await cluster.worker(name, active_requests=load)
            for load, name in enumerate(("w1", "w2", "w3"))
        }
        inbox = await ask(cluster)
        assert (await workers["w1"].next_dispatch()).attempt == 0
        plan = (("w1", "w2", 0.3), ("w2", "w3", 0.6))
        for attempt, (name, other, pause_s) in enumerate(plan):
            await runs(cluster, attempt)
            lost_at = time.monotonic()
            await workers[name].say("left")
            assert (await workers[other].next_dispatch()).attempt == attempt + 1
            assert time.monotonic() - lost_at >= pause_s
        assert not [one for one in inbox.rest() if not isinstance(one, Status)]


async def test_a_request_that_is_cancelled_in_the_pause_ends_as_cancelled(start: Start) -> None:
    async with start(retry={"initial_delay_ms": 60_000, "max_delay_ms": 60_000}) as cluster:
        worker = await cluster.worker("w1")
        inbox = await ask(cluster)
        await worker.fail(await worker.next_dispatch(), terminal_sent=False)
        await cluster.until(lambda: request_in(cluster).failures == 1)
        await cluster.query("cancel", "r")
        message = await inbox.next()
        while isinstance(message, Status):
            message = await inbox.next()
        assert isinstance(message, Done) and message.outputs[0].finish_reason == "cancelled"
        assert worker.unread == (0, 0)


async def test_a_pause_that_would_pass_the_deadline_is_not_made(start: Start) -> None:
    async with start(retry={"initial_delay_ms": 30_000, "max_delay_ms": 30_000}) as cluster:
        worker = await cluster.worker("w1")
        inbox = await ask(cluster, timeout_ms=20_000)
        await worker.fail(await worker.next_dispatch(), terminal_sent=False)
        end = await inbox.end()
        assert (end.error.code, end.error.retryable) == ("engine_crashed", True)
        assert cluster.controller._requests._pauses == {}
