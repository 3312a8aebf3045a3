"""A running controller goes from worker to worker until one takes the request."""

import pytest

from shared.bus import Bus
from shared.ids import RequestId
from shared.messages.stream import StatusMessage
from shared.settings.nats import NatsSettings
from tests.controller.running import Running, running_controller
from tests.controller.simulated_worker import SimulatedWorker, keep_silent, refuse

pytestmark = pytest.mark.anyio


async def test_a_rejection_goes_to_the_next_worker_with_the_next_attempt(cluster: Running) -> None:
    first = await cluster.worker("w1")
    second = await cluster.worker("w2", active_requests=5)
    first.answer = refuse("queue_full")
    inbox = await cluster.ask(request_id="r")
    assert (await first.next_dispatch()).attempt == cluster.first_attempt
    dispatch = await second.next_dispatch()
    assert dispatch.attempt == cluster.first_attempt + 1
    assert (await inbox.accepted()).attempt == dispatch.attempt
    await second.finish(dispatch)
    assert (await inbox.done()).attempt == dispatch.attempt
    assert (first.unread, second.unread) == ((0, 0), (0, 0))


async def test_a_worker_that_is_not_there_any_more_is_passed_over(cluster: Running) -> None:
    gone = await cluster.worker("w1")
    other = await cluster.worker("w2", active_requests=5)
    await gone.vanish()
    await cluster.ask()
    assert (await other.next_dispatch()).attempt == cluster.first_attempt + 1


async def test_a_worker_that_does_not_answer_its_claim_gets_nothing(cluster: Running) -> None:
    silent = SimulatedWorker(cluster.bus, "w1")
    silent.answers_claims.clear()
    await silent.join()
    await cluster.until(lambda: cluster.knows(silent))
    other = await cluster.worker("w2", active_requests=5)
    await cluster.ask()
    assert (await other.next_dispatch()).attempt == cluster.first_attempt
    assert silent.unread == (0, 0)


async def test_a_missing_ack_goes_to_the_next_worker_and_is_cancelled_silently(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus, dispatch={"ack_timeout_ms": 100}) as cluster:
        first = await cluster.worker("w1")
        first.answer = keep_silent
        second = await cluster.worker("w2", active_requests=5)
        await cluster.ask(request_id="r")
        dispatch = await first.next_dispatch()
        assert dispatch.attempt == cluster.first_attempt
        order = await first.next_cancel()
        assert (order.request_id, order.client) == ("r", "local")
        assert (order.attempt, order.silent) == (dispatch.attempt, True)
        assert (await second.next_dispatch()).attempt == dispatch.attempt + 1
        await cluster.settle()
        assert second.unread == (0, 0)


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("queue_full", True), ("memory_pressure", True), ("context_length_exceeded", False)],
)
async def test_when_all_reject_it_the_last_reason_is_the_end(
    cluster: Running, code: str, retryable: bool
) -> None:
    for name, wait_ms in (("w1", 700), ("w2", 300)):
        worker = await cluster.worker(name)
        worker.answer = refuse(code, wait_ms)
    inbox = await cluster.ask(request_id="r")
    end = await inbox.end()
    assert (end.error.code, end.error.retryable, end.error.retry_after_ms) == (code, retryable, 300)
    assert end.error.message == f"it said {code}; it said {code}"
    assert end.attempt == cluster.first_attempt + 1
    assert (await cluster.query("status", "r")).state == "failed"
    await cluster.settle()
    assert inbox.rest() == []


async def test_of_many_rejections_the_last_ones_are_told(cluster: Running) -> None:
    for number in range(12):
        worker = await cluster.worker(f"w{number}")
        worker.answer = refuse("context_length_exceeded")
    inbox = await cluster.ask()
    message = (await inbox.end()).error.message
    assert message == "; ".join(["2 others refused", *["it said context_length_exceeded"] * 10])


async def test_a_request_that_waits_for_an_ack_hears_that_it_is_queued_and_why(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    inbox = await cluster.ask(request_id="r")
    for _ in range(2):
        waiting = await inbox.next()
        assert waiting == StatusMessage(
            RequestId("r"), cluster.first_attempt, None, "queued", reason="dispatching"
        )


async def test_who_does_not_stream_hears_nothing_while_it_waits(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    other = await cluster.ask(request_id="other")
    inbox = await cluster.ask(request_id="r", stream=False)
    await other.next()
    await other.next()
    assert inbox.rest() == []
