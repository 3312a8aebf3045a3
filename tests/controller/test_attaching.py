"""The same id and body again: the same stream, for one who listens more, from its start."""

from typing import Any

import pytest

from shared.ids import RequestId
from shared.messages.control import AttachInbox
from shared.messages.stream import StatusMessage
from tests.controller.inbox import Inbox, failed
from tests.controller.running import Running, running_state
from tests.controller.simulated_worker import SimulatedWorker, keep_silent, refuse

pytestmark = pytest.mark.anyio


async def ask(cluster: Running, **fields: Any) -> Inbox:
    """Ask for the one request of these tests; each time with an inbox of its own."""
    return await cluster.ask(request_id="r", seed=5, **fields)


async def running(cluster: Running) -> tuple[SimulatedWorker, Inbox]:
    """The request with a worker."""
    worker = await cluster.worker("w1")
    inbox = await ask(cluster)
    await inbox.accepted()
    return worker, inbox


async def finished(cluster: Running) -> SimulatedWorker:
    """The worker that has served it."""
    worker, _ = await running(cluster)
    await worker.finish(await worker.next_dispatch())
    await cluster.until(lambda: cluster.controller.report().completed_requests == 1)
    return worker


async def hear_queued(inbox: Inbox, *, attempt: int) -> None:
    message = await inbox.next()
    assert message == StatusMessage(RequestId("r"), attempt, None, "queued", reason="dispatching")


def check(order: AttachInbox, cluster: Running, inbox: Inbox) -> None:
    assert (order.request_id, order.client) == ("r", "local")
    assert (order.attempt, order.term) == (cluster.first_attempt, cluster.machine.term)
    assert order.inbox == inbox.subject


async def test_a_running_stream_is_sent_by_its_worker_to_who_comes_late(cluster: Running) -> None:
    worker, first = await running(cluster)
    await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    late = await ask(cluster)
    check(await worker.next_attached(), cluster, late)
    await cluster.settle()
    assert (first.rest(), late.rest(), worker.unread) == ([], [], (0, 0))


async def test_a_stream_that_its_worker_ended_is_sent_by_that_worker(cluster: Running) -> None:
    worker = await finished(cluster)
    late = await ask(cluster)
    check(await worker.next_attached(), cluster, late)
    await cluster.settle()
    assert (worker.unread, late.rest()) == ((0, 0), [])
    assert cluster.controller.report().accepted_requests == 1


async def test_an_end_of_the_leaders_own_is_sent_again(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = refuse("queue_full")
    inbox = await ask(cluster)
    end = await inbox.end()
    late = await ask(cluster)
    assert await late.next() == end
    await cluster.settle()
    assert late.rest() == inbox.rest() == []
    assert worker.unread == (1, 0), "it was not tried again"


async def test_without_streaming_an_end_of_the_leaders_own_is_all_that_is_sent(
    cluster: Running,
) -> None:
    first, late = await ask(cluster, stream=False), await ask(cluster, stream=False)
    assert failed(await first.next()).error.code == "no_worker"
    assert failed(await late.next()).error.code == "no_worker"
    await cluster.settle()
    assert first.rest() == late.rest() == []


@pytest.mark.parametrize("how", ["it left", "it started again"])
async def test_an_ended_stream_whose_worker_is_gone_runs_again_with_its_seed_and_a_higher_attempt(
    cluster: Running, how: str
) -> None:
    worker = await finished(cluster)
    await worker.vanish()
    if how == "it left":
        await worker.say("left")
        other = await cluster.worker("w2")
    else:
        other = await cluster.worker("w1", boot="b2")
    late = await ask(cluster)
    again = await other.next_dispatch()
    assert (again.seed, again.inboxes) == (5, [late.subject])
    assert again.attempt == cluster.first_attempt + 1
    assert (await late.accepted()).seed == 5
    await other.finish(again)
    await late.done()
    await cluster.until(lambda: cluster.controller.report().completed_requests == 2)


async def test_two_who_come_late_for_what_nobody_has_share_one_run(cluster: Running) -> None:
    worker = await finished(cluster)
    await worker.say("left")
    other = await cluster.worker("w2")
    other.answer = keep_silent
    first, second = await ask(cluster), await ask(cluster)
    again = await other.next_dispatch()
    assert (again.attempt, again.inboxes) == (cluster.first_attempt + 1, [first.subject])
    await hear_queued(second, attempt=again.attempt)
    await other.acknowledge_late(again)
    assert (await other.next_attached()).inbox == second.subject
    await cluster.settle()
    assert other.unread == (0, 0)


async def test_who_comes_before_the_dispatch_is_among_its_inboxes(cluster: Running) -> None:
    gone = await cluster.worker("w1")
    gone.answer = keep_silent
    other = await cluster.worker("w2", active_requests=5)
    first = await ask(cluster)
    await gone.next_dispatch()
    late = await ask(cluster)
    await hear_queued(late, attempt=cluster.first_attempt)
    await gone.say("left")
    dispatch = await other.next_dispatch()
    assert dispatch.attempt == cluster.first_attempt + 1
    assert dispatch.inboxes == [first.subject, late.subject]
    await cluster.settle()
    assert other.attached_inboxes == [], "it knows both"


async def test_who_comes_between_a_dispatch_and_its_ack_is_told_to_the_worker(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    await ask(cluster)
    dispatch = await worker.next_dispatch()
    late = await ask(cluster)
    await hear_queued(late, attempt=dispatch.attempt)
    await worker.acknowledge_late(dispatch)
    assert await running_state(cluster, "r") == "running"
    await cluster.settle()
    assert worker.attached_inboxes == [late.subject]


async def test_an_end_before_the_dispatch_is_sent_to_all_who_came(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    inboxes = [await ask(cluster)]
    dispatch = await worker.next_dispatch()
    inboxes += [await ask(cluster), await ask(cluster)]
    for inbox in inboxes[1:]:
        await hear_queued(inbox, attempt=dispatch.attempt)
    await worker.say("left")
    ends = [await inbox.end() for inbox in inboxes]
    assert [end.error.code for end in ends] == ["worker_lost"] * 3
