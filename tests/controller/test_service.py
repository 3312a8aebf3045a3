"""A real controller on a real server: what it takes, and how often."""

import pytest

from shared.bus import Bus
from shared.errors import NoResponders
from shared.ids import ClientName, RequestId
from shared.messages.request import default_seed
from shared.messages.stream import Done
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

pytestmark = pytest.mark.anyio


async def test_a_request_is_accepted_dispatched_and_ends_once(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(request_id="mine", max_tokens=5)
    first = accepted(await inbox.next())
    seed = default_seed(ClientName("local"), RequestId("mine"))
    assert (first.request_id, first.attempt, first.worker, first.seed) == ("mine", 0, None, seed)
    dispatch = await worker.next_dispatch()
    assert (dispatch.request_id, dispatch.client, dispatch.skill) == ("mine", "local", "chat")
    assert (dispatch.model, dispatch.attempt, dispatch.seed) == ("demo", 0, seed)
    assert (dispatch.inboxes[0], dispatch.request.max_tokens) == (inbox.subject, 5)
    await worker.finish(dispatch)
    assert isinstance(await inbox.next(), Done)
    await cluster.until(lambda: cluster.controller.report().completed_requests == 1)
    await cluster.settle()
    assert inbox.rest() == []
    report = cluster.controller.report()
    assert (report.accepted_requests, report.active_requests, report.failed_requests) == (1, 0, 0)


async def test_without_an_id_the_controller_makes_one(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(seed=9)
    first = accepted(await inbox.next())
    assert first.request_id.startswith("req-") and first.seed == 9
    assert (await worker.next_dispatch()).request_id == first.request_id


async def test_with_stream_false_only_the_end_is_sent(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(stream=False)
    await worker.finish(await worker.next_dispatch())
    assert isinstance(await inbox.next(), Done)
    refused = await cluster.ask(stream=False, temperature=9)
    assert failed(await refused.next()).error.param == "temperature"
    await cluster.settle()
    assert inbox.rest() == refused.rest() == []


async def test_a_forwarded_request_with_a_reply_outside_the_inboxes_is_not_answered(
    cluster: Running,
) -> None:
    await cluster.worker("w1")
    inbox = await cluster.ask(temperature=9)
    failed(await inbox.next())
    inbox.subject = "t.forwarded"
    await inbox.open()
    await forward(cluster, "t.forwarded")
    await cluster.settle()
    assert inbox.rest() == []


async def test_a_forwarded_request_is_accepted_with_the_time_that_has_passed(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(temperature=9)
    failed(await inbox.next())
    await forward(cluster, inbox.subject, request_id="r")
    assert accepted(await inbox.next()).request_id == "r"
    assert (await worker.next_dispatch()).elapsed_ms >= 50


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
    assert isinstance(await inbox.next(), Done)


async def test_the_same_id_of_another_client_is_another_request(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    for client in ("ada", "bob"):
        await cluster.begin(subject=f"mlx.infer.{client}.chat", request_id="r", n=len(client))
        assert (await worker.next_dispatch()).client == client


async def test_a_controller_that_stops_ends_what_runs_and_takes_nothing_more(
    nats_settings: Nats, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus) as cluster:
        worker = await cluster.worker("w1")
        inbox = await cluster.begin(request_id="r")
        await worker.next_dispatch()
        assert await running_state(cluster, "r") == "running"
    end = failed(await inbox.next())
    assert (end.error.code, end.error.retryable) == ("draining", True)
    assert (await worker.next_cancel()).silent
    with pytest.raises(NoResponders):
        await bus.request("mlx.infer.local.chat", b"{}", timeout_s=10)
    assert inbox.rest() == []
