"""A running controller goes from worker to worker until one takes the request."""

import pytest

from shared.bus import Bus
from shared.messages.stream import Status
from shared.settings.tree import Nats
from tests.controller.running import CONTROLLER, Running, running_controller
from tests.controller.simulated_worker import keep_silent, refuse

pytestmark = pytest.mark.anyio


async def test_a_refusal_goes_to_the_next_worker_with_the_next_attempt(cluster: Running) -> None:
    first = await cluster.worker("w1")
    second = await cluster.worker("w2", active_requests=5)
    first.answer = refuse("queue_full")
    inbox = await cluster.begin(request_id="r")
    assert (await first.next_dispatch()).attempt == 0
    dispatch = await second.next_dispatch()
    assert dispatch.attempt == 1
    await second.finish(dispatch, CONTROLLER)
    assert (await inbox.next()).attempt == 1
    assert (first.unread, second.unread) == ((0, 0), (0, 0))


async def test_a_worker_that_is_not_there_any_more_is_passed_over_and_found_gone(
    cluster: Running,
) -> None:
    gone = await cluster.worker("w1")
    await gone.say("heartbeat", id="w0")  # a worker that nobody is subscribed for
    await cluster.until(lambda: cluster.controller.report().workers == 2)
    await gone.say("heartbeat", active_requests=5)
    await cluster.settle()
    await cluster.ask()
    assert (await gone.next_dispatch()).attempt == 1
    await cluster.until(lambda: cluster.controller.report().workers == 1)


async def test_a_missing_ack_goes_to_the_next_worker_and_is_cancelled_silently(
    nats_settings: Nats, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus, dispatch={"ack_timeout_ms": 100}) as cluster:
        first = await cluster.worker("w1")
        first.answer = keep_silent
        second = await cluster.worker("w2", active_requests=5)
        await cluster.begin(request_id="r")
        assert (await first.next_dispatch()).attempt == 0
        order = await first.next_cancel()
        assert (order.request_id, order.client) == ("r", "local")
        assert (order.attempt, order.silent) == (0, True)
        assert (await second.next_dispatch()).attempt == 1
        await cluster.settle()
        assert second.unread == (0, 0)


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("queue_full", True), ("memory_pressure", True), ("context_length_exceeded", False)],
)
async def test_when_all_refuse_the_last_reason_is_the_end(
    cluster: Running, code: str, retryable: bool
) -> None:
    for name, wait_ms in (("w1", 700), ("w2", 300)):
        worker = await cluster.worker(name)
        worker.answer = refuse(code, wait_ms)
    inbox = await cluster.begin(request_id="r")
    end = await inbox.end()
    assert (end.error.code, end.error.retryable, end.error.retry_after_ms) == (code, retryable, 300)
    assert end.error.message == f"it said {code}; it said {code}"
    assert (await cluster.query("status", "r")).state == "failed"
    await cluster.settle()
    assert inbox.rest() == []


async def test_of_many_refusals_the_last_ones_are_told(cluster: Running) -> None:
    for number in range(12):
        worker = await cluster.worker(f"w{number}")
        worker.answer = refuse("context_length_exceeded")
    inbox = await cluster.ask()
    message = (await inbox.end()).error.message
    assert message == "; ".join(["2 others refused", *["it said context_length_exceeded"] * 10])


async def test_a_request_that_waits_for_an_ack_hears_that_it_is_queued(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    inbox = await cluster.begin()
    waiting = await inbox.next()
    assert isinstance(waiting, Status) and waiting.status == "queued"
