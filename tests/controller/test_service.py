"""A real controller on a real server: what it takes, and how often."""

import pytest

from shared.bus import Bus
from shared.errors import NoResponders
from shared.ids import ClientName, RequestId
from shared.messages.dispatch import default_seed
from shared.settings.nats import NatsSettings
from tests.controller.inbox import failed
from tests.controller.running import Running, running_controller, running_state

pytestmark = pytest.mark.anyio


async def test_a_request_is_dispatched_accepted_and_ends_once(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(request_id="mine", max_tokens=5)
    dispatch = await worker.next_dispatch()
    seed = default_seed(ClientName("local"), RequestId("mine"))
    assert (dispatch.request_id, dispatch.client, dispatch.skill) == ("mine", "local", "chat")
    assert (dispatch.model, dispatch.attempt) == ("demo", cluster.first_attempt)
    assert (dispatch.seed, dispatch.elapsed_ms >= 0) == (seed, True)
    assert (dispatch.inboxes, dispatch.request.max_tokens) == ([inbox.subject], 5)
    first = await inbox.accepted()
    assert (first.request_id, first.attempt, first.worker) == ("mine", dispatch.attempt, "w1")
    assert first.seed == seed
    await worker.finish(dispatch)
    await inbox.done()
    await cluster.until(lambda: cluster.controller.report().completed_requests == 1)
    await cluster.settle()
    assert inbox.rest() == []
    report = cluster.controller.report()
    assert (report.accepted_requests, report.active_requests, report.failed_requests) == (1, 0, 0)


async def test_without_an_id_the_controller_makes_one(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(seed=9)
    dispatch = await worker.next_dispatch()
    assert dispatch.request_id.startswith("req-") and dispatch.seed == 9
    first = await inbox.accepted()
    assert (first.request_id, first.seed) == (dispatch.request_id, 9)


async def test_with_stream_false_only_the_end_is_sent(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(stream=False)
    await worker.finish(await worker.next_dispatch())
    await inbox.done()
    rejected = await cluster.ask(stream=False, temperature=9)
    assert failed(await rejected.next()).error.param == "temperature"
    await cluster.settle()
    assert inbox.rest() == rejected.rest() == []


async def test_a_rejected_request_is_told_before_any_attempt(cluster: Running) -> None:
    await cluster.worker("w1")
    inbox = await cluster.ask(request_id="r", temperature=9)
    end = failed(await inbox.next())
    before = cluster.machine.attempts_before
    assert (end.request_id, end.attempt, end.worker) == ("r", before, None)
    assert cluster.controller.report().accepted_requests == 0


async def test_a_transferred_request_is_served_with_the_time_that_has_passed(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.transfer(elapsed_ms=50)
    dispatch = await worker.next_dispatch()
    assert (dispatch.inboxes, dispatch.attempt) == ([inbox.subject], cluster.first_attempt)
    assert dispatch.elapsed_ms >= 50
    assert (await inbox.accepted()).seed == dispatch.seed == 5


async def test_what_is_transferred_twice_is_served_once(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    await cluster.transfer(elapsed_ms=50)
    await worker.next_dispatch()
    await cluster.transfer(elapsed_ms=60)
    await cluster.settle()
    assert worker.unread == (0, 0)
    assert cluster.controller.report().accepted_requests == 1


async def test_the_same_id_with_another_body_is_a_conflict_and_the_first_goes_on(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r")
    dispatch = await worker.next_dispatch()
    other = await cluster.ask(request_id="r", max_tokens=3)
    end = failed(await other.next())
    assert (end.error.code, end.error.param) == ("request_id_conflict", "request_id")
    assert (end.request_id, end.error.retryable) == ("r", False)
    await worker.finish(dispatch)
    await inbox.done()


async def test_the_same_id_of_another_client_is_another_request(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    for client in ("ada", "bob"):
        await cluster.begin(subject=f"mlx.infer.{client}.chat", request_id="r", n=len(client))
        assert (await worker.next_dispatch()).client == client


async def test_a_controller_that_stops_alone_ends_what_runs_and_takes_nothing_more(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus) as cluster:
        worker = await cluster.worker("w1")
        inbox = await cluster.begin(request_id="r")
        await worker.next_dispatch()
        assert await running_state(cluster, "r") == "running"
    end = await inbox.end()
    assert (end.error.code, end.error.retryable) == ("draining", True)
    assert (await worker.next_cancel()).silent
    with pytest.raises(NoResponders):
        await bus.request("mlx.infer.local.chat", b"{}", timeout_s=10)
    assert inbox.rest() == []


async def test_a_controller_that_stops_alone_in_good_order_lets_what_runs_end(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r")
    dispatch = await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    cluster.stop.request()
    await cluster.until(lambda: cluster.controller.state == "draining")
    with pytest.raises(NoResponders):
        await cluster.bus.request("mlx.infer.local.chat", b"{}", timeout_s=10)
    assert await running_state(cluster, "r") == "running"
    await worker.finish(dispatch)
    await inbox.done()
    await cluster.ended()
    assert worker.unread == (0, 0)
