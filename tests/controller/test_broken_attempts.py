"""Attempts that end badly: each request still ends exactly once."""

import time

import pytest

from shared.bus import Bus
from shared.settings.tree import Nats
from tests.controller.running import (
    CONTROLLER,
    Running,
    accepted,
    failed,
    forward,
    running_controller,
    running_state,
)
from tests.controller.simulated_worker import keep_silent, refuse

pytestmark = pytest.mark.anyio


async def test_a_silent_worker_ends_its_request_as_lost_exactly_once(
    nats_settings: Nats, bus: Bus
) -> None:
    failover = {"heartbeat_interval_ms": 200, "missed_heartbeats": 5}
    async with running_controller(nats_settings, bus, failover=failover) as cluster:
        worker = await cluster.worker("w1")
        inbox = await cluster.begin(request_id="r")
        await worker.emit(await worker.next_dispatch(), CONTROLLER, 0, 1)
        end = await inbox.end()
        assert (end.error.code, end.error.retryable) == ("worker_lost", True)
        assert "w1" in end.error.message and "nothing was heard" in end.error.message
        await worker.say("heartbeat")  # it was not dead after all, but then leaves
        await worker.say("left")
        await cluster.settle()
        assert inbox.rest() == []
        assert cluster.controller.report().failed_requests == 1
        assert (await cluster.query("status", "r")).state == "failed"


@pytest.mark.parametrize("started", [True, False])
async def test_a_worker_that_leaves_ends_its_requests_at_once_where_nobody_else_is_there(
    cluster: Running, started: bool
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r")
    dispatch = await worker.next_dispatch()
    if started:
        await worker.emit(dispatch, CONTROLLER, 0, 1)
    assert (await running_state(cluster, "r")) == "running"
    await worker.say("left")
    assert (await inbox.end()).error.code == "worker_lost"
    await cluster.settle()
    assert inbox.rest() == []


async def test_an_attempt_that_failed_and_told_the_client_is_only_noted(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r")
    await worker.fail(await worker.next_dispatch(), CONTROLLER, terminal_sent=True)
    await cluster.until(lambda: cluster.controller.report().failed_requests == 1)
    await cluster.settle()
    assert inbox.rest() == []


@pytest.mark.parametrize("max_attempts", [1, 2, 4])
async def test_what_was_not_started_is_tried_so_often_and_no_more(
    nats_settings: Nats, bus: Bus, max_attempts: int
) -> None:
    retry = {"max_attempts": max_attempts}
    async with running_controller(nats_settings, bus, retry=retry) as cluster:
        workers = [await cluster.worker(f"w{number}") for number in range(3)]
        inbox = await cluster.begin(request_id="r")
        tried: list[str] = []
        for attempt in range(max_attempts):
            await cluster.until(lambda: any(worker.unread[0] for worker in workers))
            (worker,) = [worker for worker in workers if worker.unread[0]]
            tried.append(worker.id)
            dispatch = await worker.next_dispatch()
            assert dispatch.attempt == attempt
            await worker.fail(dispatch, CONTROLLER, terminal_sent=False)
        assert len(set(tried[:3])) == min(3, max_attempts), "each once before one again"
        end = failed(await inbox.next())
        assert (end.error.code, end.attempt) == ("engine_crashed", max_attempts - 1)
        await cluster.settle()
        assert inbox.rest() == [] and not any(worker.unread[0] for worker in workers)


async def test_long_after_its_deadline_a_request_ends_and_the_worker_drops_it(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(temperature=9)
    failed(await inbox.next())
    await forward(cluster, inbox.subject, elapsed_ms=5_000, request_id="r", timeout_ms=400)
    accepted(await inbox.next())
    await worker.next_dispatch()
    end = failed(await inbox.next())
    assert (end.error.code, end.error.retryable) == ("deadline_exceeded", True)
    assert "400" in end.error.message
    assert (await worker.next_cancel()).silent


@pytest.mark.parametrize("reply", ["without results", "with a code of a newer version"])
async def test_a_strange_reply_of_a_worker_fails_its_request_and_not_the_controller(
    nats_settings: Nats, bus: Bus, reply: str
) -> None:
    async with running_controller(nats_settings, bus) as cluster:
        worker = await cluster.worker("w1")
        if reply == "without results":
            worker.results = lambda results: []
        else:
            worker.answer = refuse("too_hot_to_think")
        inbox = await cluster.begin(request_id="r")
        await cluster.until(lambda: cluster.controller.report().failed_requests == 1)
        await inbox.end()


async def test_a_deadline_that_passes_without_a_connection_is_survived(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    await cluster.begin(request_id="r", timeout_ms=60_000)
    await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    requests = cluster.controller._requests
    [request] = requests._ledger.active
    await cluster.controller._bus.close()
    request.elapsed_before_ms = 120_000
    await requests.tick(time.monotonic())
    assert requests.active == 0


async def test_refusals_are_no_failed_attempts(nats_settings: Nats, bus: Bus) -> None:
    async with running_controller(nats_settings, bus, retry={"max_attempts": 2}) as cluster:
        full = [await cluster.worker(f"w{number}") for number in range(3)]
        for worker in full:
            worker.answer = refuse("queue_full")
        last = await cluster.worker("w9", active_requests=5)
        await cluster.begin(request_id="r")
        first_try = await last.next_dispatch()
        await last.fail(first_try, CONTROLLER, terminal_sent=False)
        assert (await last.next_dispatch()).attempt > first_try.attempt == 3


async def test_what_is_given_back_before_its_ack_is_dispatched_once_more_and_no_oftener(
    cluster: Running,
) -> None:
    first = await cluster.worker("w1")
    second = await cluster.worker("w2", active_requests=5)
    first.answer = keep_silent
    await cluster.begin(request_id="r")
    dispatch = await first.next_dispatch()
    await first.fail(dispatch, CONTROLLER, terminal_sent=False)
    await first.acknowledge_late(dispatch)
    assert (await second.next_dispatch()).attempt == 1
    await cluster.settle()
    assert second.unread[0] == first.unread[0] == 0
    state = await cluster.query("status", "r")
    assert (state.state, state.worker, state.attempt) == ("running", "w2", 1)
