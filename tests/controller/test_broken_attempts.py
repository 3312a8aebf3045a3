"""Attempts that end badly: each request still ends exactly once."""

import asyncio
import json
import time

import pytest

from controller.entrance import Entrance
from controller.kept_prefixes import KeptByWorkers
from controller.link_watch import LinkWatch
from controller.peers import Peers
from controller.registry import Registry
from controller.requests import Requests
from shared.bus import Bus
from shared.ids import BootId, WorkerId
from shared.settings import ClusterSettings
from shared.settings.tree import Nats
from tests.access.roles import connect_as
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
from tests.controller.values import DEMO

pytestmark = pytest.mark.anyio


async def test_what_an_earlier_attempt_still_says_does_not_count(cluster: Running) -> None:
    first = await cluster.worker("w1")
    second = await cluster.worker("w2", active_requests=5)
    first.answer = refuse("queue_full")
    inbox = await cluster.ask(request_id="r")
    accepted(await inbox.next())
    old = await first.next_dispatch()
    await second.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    await first.emit(old, CONTROLLER, 0, 1, 2)
    await first.fail(old, CONTROLLER, terminal_sent=True)
    await cluster.settle()
    state = await cluster.query("status", "r")
    assert (state.state, state.worker, state.tokens) == ("running", "w2", 0)


async def test_a_silent_worker_ends_its_request_as_lost_exactly_once(
    nats_settings: Nats, bus: Bus
) -> None:
    failover = {"heartbeat_interval_ms": 200, "missed_heartbeats": 5}
    async with running_controller(nats_settings, bus, failover=failover) as cluster:
        worker = await cluster.worker("w1")
        inbox = await cluster.ask(request_id="r")
        accepted(await inbox.next())
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
    inbox = await cluster.ask(request_id="r")
    accepted(await inbox.next())
    dispatch = await worker.next_dispatch()
    if started:
        await worker.emit(dispatch, CONTROLLER, 0, 1)
    assert (await running_state(cluster, "r")) == "running"
    await worker.say("left")
    assert (await inbox.end()).error.code == "worker_lost"
    await cluster.settle()
    assert inbox.rest() == []


async def test_a_worker_that_leaves_before_its_ack_is_passed_over(cluster: Running) -> None:
    first = await cluster.worker("w1")
    first.answer = keep_silent
    second = await cluster.worker("w2", active_requests=5)
    inbox = await cluster.ask(request_id="r")
    accepted(await inbox.next())
    await first.next_dispatch()
    await first.say("left")
    assert (await second.next_dispatch(limit_s=0.5)).attempt == 1


async def test_an_attempt_that_failed_and_told_the_client_is_only_noted(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(request_id="r")
    accepted(await inbox.next())
    await worker.fail(await worker.next_dispatch(), CONTROLLER, terminal_sent=True)
    await cluster.until(lambda: cluster.controller.report().failed_requests == 1)
    await cluster.settle()
    assert inbox.rest() == []


async def test_what_was_not_started_goes_to_another_worker_when_its_own_fails(
    cluster: Running,
) -> None:
    first = await cluster.worker("w1")
    second = await cluster.worker("w2", active_requests=5)
    inbox = await cluster.ask(request_id="r")
    accepted(await inbox.next())
    await first.fail(await first.next_dispatch(), CONTROLLER, terminal_sent=False)
    dispatch = await second.next_dispatch()
    assert (dispatch.attempt, dispatch.seed, inbox.rest()) == (1, dispatch.seed, [])
    await second.say("left")
    assert (await first.next_dispatch()).attempt == 2


async def test_a_lone_worker_gets_back_what_it_could_not_start_but_not_for_ever(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(request_id="r")
    accepted(await inbox.next())
    for attempt in range(3):
        dispatch = await worker.next_dispatch()
        assert dispatch.attempt == attempt
        await worker.fail(dispatch, CONTROLLER, terminal_sent=False)
    await cluster.until(lambda: cluster.controller.report().failed_requests == 1)
    await cluster.settle()
    assert [failed(message).error.code for message in inbox.rest()] == ["engine_crashed"]
    assert worker.unread[0] == 0


@pytest.mark.parametrize("max_attempts", [1, 2, 4])
async def test_what_was_not_started_is_tried_so_often_and_no_more(
    nats_settings: Nats, bus: Bus, max_attempts: int
) -> None:
    retry = {"max_attempts": max_attempts}
    async with running_controller(nats_settings, bus, retry=retry) as cluster:
        workers = [await cluster.worker(f"w{number}") for number in range(3)]
        inbox = await cluster.ask(request_id="r")
        accepted(await inbox.next())
        for attempt in range(max_attempts):
            await cluster.until(lambda: any(worker.unread[0] for worker in workers))
            (worker,) = [worker for worker in workers if worker.unread[0]]
            dispatch = await worker.next_dispatch()
            assert dispatch.attempt == attempt
            await worker.fail(dispatch, CONTROLLER, terminal_sent=False)
        end = failed(await inbox.next())
        assert (end.error.code, end.attempt) == ("engine_crashed", max_attempts - 1)
        await cluster.settle()
        assert inbox.rest() == [] and not any(worker.unread[0] for worker in workers)


async def test_all_workers_are_tried_before_one_is_tried_again(cluster: Running) -> None:
    workers = [await cluster.worker(f"w{number}") for number in range(3)]
    accepted(await (await cluster.ask(request_id="r")).next())
    tried: list[str] = []
    for _ in range(3):
        await cluster.until(lambda: any(worker.unread[0] for worker in workers))
        (worker,) = [worker for worker in workers if worker.unread[0]]
        tried.append(worker.id)
        await worker.fail(await worker.next_dispatch(), CONTROLLER, terminal_sent=False)
    assert sorted(tried) == ["w0", "w1", "w2"]


async def test_a_request_that_loses_its_only_worker_hears_of_that(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(request_id="r")
    accepted(await inbox.next())
    await worker.next_dispatch()
    assert (await running_state(cluster, "r")) == "running"
    await worker.say("left")
    assert (await inbox.end()).error.code == "worker_lost"


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
        inbox = await cluster.ask(request_id="r")
        accepted(await inbox.next())
        await cluster.until(lambda: cluster.controller.report().failed_requests == 1)
        await inbox.end()


async def test_a_deadline_that_passes_without_a_connection_is_survived(nats_settings: Nats) -> None:
    own = await connect_as("controller", CONTROLLER, nats_settings.servers[0])
    settings, registry = ClusterSettings(), Registry(silence_limit_s=60)
    peers = Peers(own, CONTROLLER, registry, LinkWatch(own, 1.0))
    requests = Requests(settings, own, CONTROLLER, registry, KeptByWorkers(own, registry), peers)
    await Entrance(settings, own, CONTROLLER, peers, requests).open()
    body = {
        "client": "local", "skill": "chat", "reply": "_INBOX.local.x", "elapsed_ms": 9_000,
        "request": {"prompt": "x", "timeout_ms": 1},
    }  # fmt: skip
    await own.publish(f"mlx.controller.{CONTROLLER}.infer", json.dumps(body).encode())
    async with asyncio.timeout(10):
        while not requests.active:
            await own.flush()
    [request] = requests._ledger.active
    request.begin_attempt(WorkerId("w1"), BootId("b1"), DEMO)
    await own.close()
    await requests.tick(time.monotonic())
    assert requests.active == 0


async def test_refusals_are_no_failed_attempts(nats_settings: Nats, bus: Bus) -> None:
    async with running_controller(nats_settings, bus, retry={"max_attempts": 2}) as cluster:
        full = [await cluster.worker(f"w{number}") for number in range(3)]
        for worker in full:
            worker.answer = refuse("queue_full")
        last = await cluster.worker("w9", active_requests=5)
        accepted(await (await cluster.ask(request_id="r")).next())
        first_try = await last.next_dispatch()
        await last.fail(first_try, CONTROLLER, terminal_sent=False)
        assert (await last.next_dispatch()).attempt > first_try.attempt == 3


async def test_what_is_given_back_before_its_ack_is_dispatched_once_more_and_no_oftener(
    cluster: Running,
) -> None:
    first = await cluster.worker("w1")
    second = await cluster.worker("w2", active_requests=5)
    first.answer = keep_silent
    accepted(await (await cluster.ask(request_id="r")).next())
    dispatch = await first.next_dispatch()
    await first.fail(dispatch, CONTROLLER, terminal_sent=False)
    await first.acknowledge_late(dispatch)
    assert (await second.next_dispatch()).attempt == 1
    await cluster.settle()
    assert second.unread[0] == first.unread[0] == 0
    state = await cluster.query("status", "r")
    assert (state.state, state.worker, state.attempt) == ("running", "w2", 1)
