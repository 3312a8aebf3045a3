"""Attempts that end badly: each request still ends exactly once."""

import asyncio
import time
from typing import Any

import pytest

from shared.bus import Bus
from shared.ids import LOCAL_CLIENT, RequestId
from shared.messages.stream import FailedMessage
from shared.settings.nats import NatsSettings
from tests.access.roles import as_tester
from tests.controller.running import Running, running_controller, running_state
from tests.controller.simulated_worker import keep_silent, refuse
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio


async def test_a_silent_worker_ends_its_request_as_lost_exactly_once(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    failover = {"heartbeat_interval_ms": 200, "missed_heartbeats": 5}
    async with running_controller(nats_settings, bus, failover=failover) as cluster:
        worker = await cluster.worker("w1")
        inbox = await cluster.begin(request_id="r")
        await worker.emit(await worker.next_dispatch(), 0, 1)
        end = await inbox.end()
        assert (end.error.code, end.error.retryable) == ("worker_lost", True)
        assert "w1" in end.error.message and "no report for" in end.error.message
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
        await worker.emit(dispatch, 0, 1)
    assert (await running_state(cluster, "r")) == "running"
    await worker.say("left")
    assert (await inbox.end()).error.code == "worker_lost"
    await cluster.settle()
    assert inbox.rest() == []


async def test_an_attempt_that_failed_and_told_the_client_is_only_noted(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r")
    await worker.fail(await worker.next_dispatch(), terminal_sent=True)
    await cluster.until(lambda: cluster.controller.report().failed_requests == 1)
    await cluster.settle()
    assert inbox.rest() == []


@pytest.mark.parametrize("max_attempts", [1, 2, 4])
async def test_what_was_not_started_is_tried_so_often_and_no_more(
    nats_settings: NatsSettings, bus: Bus, max_attempts: int
) -> None:
    retry = {"max_attempts": max_attempts}
    async with running_controller(nats_settings, bus, retry=retry) as cluster:
        workers = [await cluster.worker(f"w{number}") for number in range(3)]
        inbox = await cluster.begin(request_id="r")
        tried: list[str] = []
        for number in range(max_attempts):
            await cluster.until(lambda: any(worker.unread[0] for worker in workers))
            (worker,) = [worker for worker in workers if worker.unread[0]]
            tried.append(worker.id)
            dispatch = await worker.next_dispatch()
            assert dispatch.attempt == cluster.first_attempt + number
            await worker.fail(dispatch, terminal_sent=False)
        assert len(set(tried[:3])) == min(3, max_attempts), "each once before one again"
        end = await inbox.end()
        assert (end.error.code, end.attempt) == ("internal_error", dispatch.attempt)
        await cluster.settle()
        assert inbox.rest() == [] and not any(worker.unread[0] for worker in workers)


async def test_long_after_its_deadline_a_request_ends_and_the_worker_drops_it(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.transfer(elapsed_ms=5_000, timeout_ms=400)
    await worker.next_dispatch()
    end = await inbox.end()
    assert (end.error.code, end.error.retryable) == ("deadline_exceeded", True)
    assert "400" in end.error.message
    assert (await worker.next_cancel()).silent


@pytest.mark.parametrize("reply", ["without results", "with a code of a newer version"])
async def test_a_strange_reply_of_a_worker_fails_its_request_and_not_the_controller(
    nats_settings: NatsSettings, bus: Bus, reply: str
) -> None:
    async with running_controller(nats_settings, bus) as cluster:
        worker = await cluster.worker("w1")
        if reply == "without results":
            worker.results = lambda results: []
        else:
            worker.answer = refuse("too_hot_to_think")
        inbox = await cluster.ask(request_id="r")
        await cluster.until(lambda: cluster.controller.report().failed_requests == 1)
        await inbox.end()


async def test_a_deadline_that_passes_without_a_connection_ends_the_request_when_it_is_back(
    server: NatsProcess, own_bus: Bus
) -> None:
    room = {"max_wait_ms": 60_000}
    async with running_controller(as_tester(server.url), own_bus, waiting_room=room) as cluster:
        await cluster.worker("w1", active_requests=8, queued_requests=10)
        asked: dict[str, Any] = {"request_id": "r", "timeout_ms": 1500}
        await cluster.ask(**asked)
        await cluster.until(lambda: cluster.machine.waiting == 1)
        request = cluster.machine.find((LOCAL_CLIENT, RequestId("r")))
        assert request is not None
        server.kill()
        await cluster.until(lambda: time.monotonic() > request.deadline + 0.1)
        assert not request.ended, "another one may lead meanwhile"
        await asyncio.to_thread(server.start)
        await cluster.until(lambda: request.ended)
        await own_bus.wait_connected()
        again = await cluster.ask(**asked)  # the first end may have come before we were back
        assert (await again.end()).error.code == "deadline_exceeded"


async def test_rejections_are_no_failed_attempts(nats_settings: NatsSettings, bus: Bus) -> None:
    async with running_controller(nats_settings, bus, retry={"max_attempts": 2}) as cluster:
        full = [await cluster.worker(f"w{number}") for number in range(3)]
        for worker in full:
            worker.answer = refuse("queue_full")
        last = await cluster.worker("w9", active_requests=5)
        await cluster.begin(request_id="r")
        first_try = await last.next_dispatch()
        assert first_try.attempt == cluster.first_attempt + 3
        await last.fail(first_try, terminal_sent=False)
        assert (await last.next_dispatch()).attempt > first_try.attempt


async def test_what_is_given_back_before_its_ack_is_dispatched_once_more_and_no_oftener(
    cluster: Running,
) -> None:
    first = await cluster.worker("w1")
    second = await cluster.worker("w2", active_requests=5)
    first.answer = keep_silent
    inbox = await cluster.ask(request_id="r")
    dispatch = await first.next_dispatch()
    await first.fail(dispatch, terminal_sent=False)
    await first.acknowledge_late(dispatch)
    again = await second.next_dispatch()
    assert again.attempt == cluster.first_attempt + 1
    await cluster.settle()
    assert second.unread[0] == first.unread[0] == 0
    state = await cluster.query("status", "r")
    assert (state.state, state.worker, state.attempt) == ("running", "w2", again.attempt)
    assert not [message for message in inbox.rest() if isinstance(message, FailedMessage)]
