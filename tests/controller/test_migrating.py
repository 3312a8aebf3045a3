"""A request that had begun to be answered goes on at another worker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.bus import Bus
from shared.messages.dispatch import Continuation, Dispatch
from shared.messages.stream import DoneMessage, StatusMessage
from shared.settings.nats import NatsSettings
from tests.controller.inbox import Inbox
from tests.controller.running import Running, running_controller, running_state
from tests.controller.simulated_worker import SimulatedWorker
from tests.controller.values import able, models

pytestmark = pytest.mark.anyio


async def begun(
    cluster: Running, worker: SimulatedWorker, *token_ids: int, **body: Any
) -> tuple[Inbox, Dispatch]:
    """A request that a worker has begun to answer with these tokens."""
    inbox = await cluster.ask(request_id="r", **body)
    if body.get("stream", True):
        await inbox.accepted()
    dispatch = await worker.next_dispatch()
    await worker.emit(dispatch, 0, *token_ids, cached_tokens=3, text_sent=9)
    assert await running_state(cluster, "r") == "running"
    return inbox, dispatch


def token_ids(dispatch: Dispatch) -> dict[int, list[int]]:
    """Those from which an attempt goes on."""
    assert dispatch.resume is not None
    return dispatch.resume.token_ids


@pytest.fixture
async def pair(cluster: Running) -> tuple[SimulatedWorker, SimulatedWorker]:
    """The first one gets what comes."""
    return await cluster.worker("w1"), await cluster.worker("w2", active_requests=5)


Pair = tuple[SimulatedWorker, SimulatedWorker]


@pytest.fixture
async def roomy(nats_settings: NatsSettings, bus: Bus) -> AsyncIterator[Running]:
    """A controller in which requests wait for workers."""
    room = {"max_wait_ms": 60_000}
    async with running_controller(nats_settings, bus, waiting_room=room) as running:
        yield running


async def test_when_its_worker_leaves_another_one_goes_on_from_its_tokens(
    cluster: Running, pair: Pair
) -> None:
    first, second = pair
    inbox, old = await begun(cluster, first, 1, 2, 3)
    await first.say("left")
    new = await second.next_dispatch()
    assert (new.attempt, new.seed) == (old.attempt + 1, old.seed)
    assert new.request == old.request
    assert isinstance(new.resume, Continuation) and new.resume.token_ids == {0: [1, 2, 3]}
    assert new.resume.cached_tokens == 3
    assert new.resume.text_sent == {0: 9}
    assert 0 < (new.resume.first_token_ms or 0) < new.elapsed_ms
    status = await inbox.next()
    assert isinstance(status, StatusMessage) and (status.status, status.worker) == (
        "migrating",
        None,
    )
    await second.finish(new)
    assert isinstance(await inbox.next(), DoneMessage)
    await cluster.until(lambda: cluster.controller.report().completed_requests == 1)
    report = cluster.controller.report()
    assert (report.retries, report.migrations, report.failed_requests) == (1, 1, 0)


async def test_it_goes_on_with_the_model_that_began_and_with_no_other(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus, models=["best", "demo"]) as cluster:
        first = await cluster.worker("w1")
        await begun(cluster, first, 1)
        await cluster.worker("w2", models=models(best="warm"))
        second = await cluster.worker("w3", active_requests=5)
        await first.say("left")
        assert (await second.next_dispatch()).model == "demo"


async def test_what_a_model_that_thinks_began_goes_on_at_no_older_release(
    roomy: Running,
) -> None:
    first = await roomy.worker("w1", models=able("reasoning"))
    await begun(roomy, first, 1)
    older = await roomy.worker("w2")
    await first.say("left")
    await roomy.until(lambda: roomy.machine.waiting == 1)
    second = await roomy.worker("w3", models=able("reasoning"), active_requests=5)
    assert token_ids(await second.next_dispatch()) == {0: [1]}
    assert older.unread == (0, 0)


async def test_a_worker_that_starts_again_goes_on_with_what_its_last_boot_began(
    roomy: Running,
) -> None:
    worker = await roomy.worker("w1")
    await begun(roomy, worker, 1, 2)
    await worker.vanish()
    back = await roomy.worker("w1", boot="b2")
    assert token_ids(await back.next_dispatch()) == {0: [1, 2]}


async def test_an_engine_that_ended_has_its_requests_go_on_elsewhere(
    cluster: Running, pair: Pair
) -> None:
    first, second = pair
    _, old = await begun(cluster, first, 1, 2)
    await first.fail(old, terminal_sent=False)
    assert token_ids(await second.next_dispatch()) == {0: [1, 2]}


async def test_who_does_not_stream_hears_nothing_of_it(cluster: Running, pair: Pair) -> None:
    first, second = pair
    inbox, _ = await begun(cluster, first, 1, 2, stream=False)
    await first.say("left")
    await second.finish(await second.next_dispatch())
    assert isinstance(await inbox.next(), DoneMessage)
    assert inbox.rest() == []


async def test_what_the_next_attempts_emit_is_added_and_what_the_last_one_still_does_is_not(
    cluster: Running, pair: Pair
) -> None:
    first, second = pair
    third = await cluster.worker("w3", active_requests=6)
    _, old = await begun(cluster, first, 1, 2)
    await first.fail(old, terminal_sent=False)
    new = await second.next_dispatch()
    await first.emit(old, 2, 9, 9)
    await second.emit(new, 2, 3)
    await cluster.settle()
    assert (await cluster.query("status", "r")).tokens == 3
    await second.say("left")
    assert token_ids(await third.next_dispatch()) == {0: [1, 2, 3]}


async def test_choices_that_ended_are_told_with_their_reason_where_all_their_tokens_are_known(
    cluster: Running, pair: Pair
) -> None:
    first, second = pair
    _, old = await begun(cluster, first, 1, 2, n=4)
    await first.emit(old, 0, 5, choice=1)
    await first.emit(old, 1, choice=1, finish_reason="stop")
    await first.emit(old, 0, 7, choice=2)
    await first.emit(old, 2, 8, choice=2, finish_reason="length")
    await first.say("left")
    resume = (await second.next_dispatch()).resume
    assert resume is not None
    assert resume.token_ids == {0: [1, 2], 1: [5], 2: [7]}
    assert resume.finish_reasons == {1: "stop"}


async def test_what_the_client_brought_comes_before_what_was_emitted(
    cluster: Running, pair: Pair
) -> None:
    first, second = pair
    brought = {"token_ids": [7, 8], "text_sent": 4}
    await cluster.ask(request_id="r", resume=brought)
    old = await first.next_dispatch()
    assert old.resume is None
    await first.emit(old, 2, 9)
    await cluster.settle()
    assert (await cluster.query("status", "r")).tokens == 1
    await first.say("left")
    assert token_ids(await second.next_dispatch()) == {0: [7, 8, 9]}


async def test_what_cannot_be_better_elsewhere_ends(cluster: Running, pair: Pair) -> None:
    first, second = pair
    inbox, old = await begun(cluster, first, 1)
    await first.fail(old, terminal_sent=False, code="request_failed")
    assert (await inbox.end()).error.code == "request_failed"
    assert second.unread == (0, 0)


async def test_whose_time_is_over_does_not_go_on(cluster: Running, pair: Pair) -> None:
    first, second = pair
    inbox, old = await begun(cluster, first, 1, timeout_ms=200)
    await asyncio.sleep(0.2)
    await first.fail(old, terminal_sent=False)
    error = (await inbox.end()).error
    assert (error.code, error.message) == ("deadline_exceeded", "timeout_ms of 200 passed")
    assert second.unread == (0, 0)


async def test_who_was_cancelled_does_not_go_on(cluster: Running, pair: Pair) -> None:
    first, second = pair
    inbox, old = await begun(cluster, first, 1)
    await cluster.query("cancel", "r")
    await first.next_cancel()
    await first.fail(old, terminal_sent=False)
    end = await inbox.done()
    assert [output.finish_reason for output in end.outputs] == ["cancelled"]
    assert second.unread == (0, 0)


# Limits.


@pytest.fixture(params=[0, 1, 3])
async def limited(
    nats_settings: NatsSettings, bus: Bus, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Running, int]]:
    limit = request.param
    failover = {"heartbeat_interval_ms": 1000, "missed_heartbeats": 100, "migration_limit": limit}
    retry = {"initial_delay_ms": 1}
    async with running_controller(nats_settings, bus, failover=failover, retry=retry) as running:
        yield running, limit


async def test_it_goes_on_so_often_and_no_more(limited: tuple[Running, int]) -> None:
    cluster, limit = limited
    worker = await cluster.worker("w1")
    inbox, dispatch = await begun(cluster, worker, 1)
    for _ in range(limit):
        await worker.fail(dispatch, terminal_sent=False)
        dispatch = await worker.next_dispatch()
    await worker.fail(dispatch, terminal_sent=False)
    assert (await inbox.end()).error.code == "internal_error"
    await cluster.settle()
    assert worker.unread[0] == 0
    assert cluster.controller.report().migrations == limit


@pytest.mark.parametrize("started", [True, False])
async def test_over_whom_two_engines_ended_is_not_tried_a_third_time(
    cluster: Running, pair: Pair, started: bool
) -> None:
    first, second = pair
    third = await cluster.worker("w3", active_requests=6)
    inbox = await cluster.ask(request_id="r")
    await inbox.accepted()
    for worker in (first, second):
        dispatch = await worker.next_dispatch()
        if started:
            await worker.emit(dispatch, 0, 1)
        await worker.fail(dispatch, terminal_sent=False, suspect=True)
    error = (await inbox.end()).error
    assert (error.code, error.retryable) == ("request_crashes_engine", False)
    assert third.unread == (0, 0)


async def test_who_was_only_there_when_engines_ended_goes_on(cluster: Running, pair: Pair) -> None:
    first, second = pair
    third = await cluster.worker("w3", active_requests=6)
    _, dispatch = await begun(cluster, first, 1)
    await first.fail(dispatch, terminal_sent=False, suspect=True)
    await second.fail(await second.next_dispatch(), terminal_sent=False)
    assert token_ids(await third.next_dispatch()) == {0: [1]}
