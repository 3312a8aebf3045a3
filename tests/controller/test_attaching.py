"""The same id and body again: the same stream, for one who listens more, from its start."""

from typing import Any

import pytest

from shared.bus import Bus
from shared.messages.control import AttachStream
from shared.messages.stream import Done
from shared.settings.tree import Nats
from tests.controller.running import (
    CONTROLLER,
    Inbox,
    Running,
    accepted,
    failed,
    running_controller,
    running_state,
)
from tests.controller.simulated_worker import SimulatedWorker, keep_silent, refuse

pytestmark = pytest.mark.anyio


async def ask(cluster: Running, **fields: Any) -> Inbox:
    """Ask for the one request of these tests; each time with an inbox of its own."""
    return await cluster.ask(request_id="r", seed=5, **fields)


async def begin(cluster: Running) -> Inbox:
    """The same, and it is accepted."""
    return await cluster.begin(request_id="r", seed=5)


async def running(cluster: Running) -> tuple[SimulatedWorker, Inbox]:
    """The request with a worker."""
    worker = await cluster.worker("w1")
    return worker, await begin(cluster)


def check(order: AttachStream, inbox: Inbox, *, attempt: int = 0) -> None:
    assert (order.request_id, order.client, order.attempt) == ("r", "local", attempt)
    assert order.inbox == inbox.subject


async def test_a_running_stream_is_sent_by_its_worker_to_who_comes_late(cluster: Running) -> None:
    worker, first = await running(cluster)
    await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    late = await ask(cluster)
    assert accepted(await late.next()).seed == 5
    check(await worker.next_attached(), late)
    await cluster.settle()
    assert (first.rest(), late.rest(), worker.unread) == ([], [], (0, 0))


async def test_a_stream_that_its_worker_ended_is_sent_by_that_worker(cluster: Running) -> None:
    worker, _ = await running(cluster)
    await worker.finish(await worker.next_dispatch(), CONTROLLER)
    await cluster.until(lambda: cluster.controller.report().completed_requests == 1)
    late = await begin(cluster)
    check(await worker.next_attached(), late)
    await cluster.settle()
    assert (worker.unread, late.rest()) == ((0, 0), [])
    assert cluster.controller.report().accepted_requests == 1


async def test_an_end_of_the_controllers_own_is_sent_again(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = refuse("queue_full")
    inbox = await begin(cluster)
    end = await inbox.end()
    late = await begin(cluster)
    assert await late.next() == end
    await cluster.settle()
    assert late.rest() == inbox.rest() == []
    assert worker.unread == (1, 0), "it was not tried again"


async def test_without_streaming_an_end_of_the_controllers_own_is_all_that_is_sent(
    cluster: Running,
) -> None:
    first, late = await ask(cluster, stream=False), await ask(cluster, stream=False)
    assert failed(await first.next()).error.code == "no_worker"
    assert failed(await late.next()).error.code == "no_worker"
    await cluster.settle()
    assert first.rest() == late.rest() == []


@pytest.mark.parametrize("how", ["it vanished", "it forgot"])
async def test_an_ended_stream_that_nobody_keeps_runs_again_with_its_seed_and_a_higher_attempt(
    cluster: Running, how: str
) -> None:
    worker, _ = await running(cluster)
    dispatch = await worker.next_dispatch()
    await worker.finish(dispatch, CONTROLLER)
    await cluster.until(lambda: cluster.controller.report().completed_requests == 1)
    other = await cluster.worker("w2", active_requests=5)
    if how == "it vanished":
        await worker.vanish()
    else:
        worker.keeps = False
        await worker.say("state_changed", state="draining")
    late = await begin(cluster)
    again = await other.next_dispatch()
    assert (again.seed, again.inboxes) == (dispatch.seed, [late.subject])
    assert again.attempt > dispatch.attempt
    await other.finish(again, CONTROLLER)
    assert isinstance(await late.next(), Done)
    await cluster.until(lambda: cluster.controller.report().completed_requests == 2)


async def test_two_who_come_late_for_what_nobody_keeps_share_one_run(
    nats_settings: Nats, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus, dispatch={"ack_timeout_ms": 200}) as cluster:
        worker, _ = await running(cluster)
        await worker.finish(await worker.next_dispatch(), CONTROLLER)
        await cluster.until(lambda: cluster.controller.report().completed_requests == 1)
        worker.keeps = None
        await worker.say("state_changed", state="draining")
        other = await cluster.worker("w2")
        for late in (await ask(cluster), await ask(cluster)):
            accepted(await late.next())
        assert (await other.next_dispatch()).attempt == 1
        assert await running_state(cluster, "r") == "running"
        await cluster.settle()
        assert other.unread == (0, 0)


async def test_a_running_stream_that_its_worker_does_not_know_is_left_alone(
    cluster: Running,
) -> None:
    worker, _ = await running(cluster)
    await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    worker.keeps = False
    late = await begin(cluster)
    await worker.next_attached()
    await cluster.settle()
    assert (late.rest(), worker.unread) == ([], (0, 0))
    assert (await cluster.query("status", "r")).attempt == 0


async def test_who_comes_before_the_dispatch_is_among_its_inboxes(cluster: Running) -> None:
    gone = await cluster.worker("w1")
    gone.answer = keep_silent
    second = await cluster.worker("w2", active_requests=5)
    first = await begin(cluster)
    await gone.next_dispatch()
    late = await begin(cluster)
    await gone.say("left")
    dispatch = await second.next_dispatch(limit_s=0.5)
    assert (dispatch.attempt, dispatch.inboxes) == (1, [first.subject, late.subject])


async def test_who_comes_between_a_dispatch_and_its_ack_is_told_to_the_worker(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    await begin(cluster)
    dispatch = await worker.next_dispatch()
    late = await begin(cluster)
    await worker.acknowledge_late(dispatch)
    assert await running_state(cluster, "r") == "running"
    await cluster.settle()
    assert worker.attached_inboxes == [late.subject]


async def test_an_end_before_the_dispatch_is_sent_to_all_who_came(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    inboxes = [await ask(cluster)]
    await worker.next_dispatch()
    inboxes += [await ask(cluster), await ask(cluster)]
    for inbox in inboxes:
        accepted(await inbox.next())
    await worker.say("left")
    ends = [await inbox.end() for inbox in inboxes]
    assert [end.error.code for end in ends] == ["worker_lost"] * 3
