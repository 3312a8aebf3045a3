"""Cancel and status of a running controller's requests."""

import pytest

from shared.bus import Bus
from shared.codec import decode
from shared.errors import BusTimeout
from shared.messages.control import RequestState
from shared.settings.nats import NatsSettings
from tests.controller.inbox import Inbox
from tests.controller.pair import running_pair
from tests.controller.running import CONTROLLER, Running, running_controller, running_state
from tests.controller.simulated_worker import WAIT_S, keep_silent

pytestmark = pytest.mark.anyio
SECURED = False  # no client that a server knows has such names, nor such inboxes


async def hear_cancelled(inbox: Inbox) -> None:
    end = await inbox.done()
    assert [output.finish_reason for output in end.outputs] == ["cancelled"]


async def test_status_tells_worker_attempt_and_tokens(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r")
    dispatch = await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    await worker.emit(dispatch, 0, 1, 2)
    await worker.emit(dispatch, 1, 2, 3)
    await cluster.settle()
    state = await cluster.query("status", "r")
    assert (state.controller, state.worker) == (CONTROLLER, "w1")
    assert state.attempt == dispatch.attempt == cluster.first_attempt
    assert (state.state, state.tokens) == ("running", 3)
    await worker.finish(dispatch)
    await inbox.done()
    await cluster.settle()
    assert (await cluster.query("status", "r")).state == "finished"


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("mlx.request.local.status", b'{"request_id": "other"}'),
        ("mlx.request.bob.cancel", b'{"request_id": "r"}'),
    ],
)
async def test_a_query_for_an_unknown_request_is_told_so(
    cluster: Running, subject: str, body: bytes
) -> None:
    await cluster.worker("w1")
    await cluster.begin(request_id="r")
    answer = await cluster.bus.request(subject, body, timeout_s=WAIT_S)
    state = decode(RequestState, answer.payload)
    assert (state.state, state.controller, state.message) == ("unknown", CONTROLLER, None)
    assert await running_state(cluster, "r") == "running"


async def test_a_query_for_an_unknown_request_is_not_answered_while_a_worker_has_yet_to_tell(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    """Of a worker that was there when this one began to lead: it may have the request."""
    async with running_pair(nats_settings, bus) as pair:
        worker = await pair.worker("w1")
        worker.answers_claims.clear()
        await pair.first.leave()
        await pair.second.until(lambda: pair.second.serves)
        with pytest.raises(BusTimeout):
            await bus.request("mlx.request.local.status", b'{"request_id": "r"}', timeout_s=0.2)
        worker.answers_claims.set()
        await pair.second.until_claimed(worker)
        assert (await pair.query("status", "r")).state == "unknown"


@pytest.mark.parametrize(
    ("subject", "body", "problem"),
    [
        ("mlx.request.local.delete", b'{"request_id": "r"}', "verb 'delete'"),
        ("mlx.request.no$name.cancel", b'{"request_id": "r"}', "client 'no$name'"),
        ("mlx.request.local.cancel", b'{"request_id": "r", "why": 1}', "why: unknown field"),
        ("mlx.request.local.cancel", b'{"request_id": 5}', "request_id"),
        ("mlx.request.local.status", b"no json", "Invalid JSON"),
        ("mlx.request.local.status", b"", "Invalid JSON"),
    ],
)
async def test_a_broken_query_is_told_what_is_wrong_and_changes_nothing(
    cluster: Running, subject: str, body: bytes, problem: str
) -> None:
    await cluster.worker("w1")
    await cluster.begin(request_id="r")
    answer = await cluster.bus.request(subject, body, timeout_s=WAIT_S)
    state = decode(RequestState, answer.payload)
    assert state.state == "unknown" and state.message is not None and problem in state.message
    assert await running_state(cluster, "r") == "running"


async def test_cancelling_a_running_request_tells_its_worker_to_end_it(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    await cluster.begin(request_id="r")
    dispatch = await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    assert (await cluster.query("cancel", "r")).state == "running"
    order = await worker.next_cancel()
    assert (order.request_id, order.attempt, order.silent) == ("r", dispatch.attempt, False)
    assert order.term == cluster.machine.term


async def test_cancelling_before_the_ack_takes_effect_when_it_comes(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    await cluster.ask(request_id="r")
    dispatch = await worker.next_dispatch()
    assert (await cluster.query("cancel", "r")).state == "dispatching"
    assert worker.unread == (0, 0)
    await worker.acknowledge_late(dispatch)
    order = await worker.next_cancel()
    assert (order.request_id, order.attempt, order.silent) == ("r", dispatch.attempt, False)


async def test_cancelling_before_any_worker_took_it_ends_it_as_cancelled(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus, dispatch={"ack_timeout_ms": 300}) as cluster:
        first = await cluster.worker("w1")
        first.answer = keep_silent
        second = await cluster.worker("w2", active_requests=5)
        inbox = await cluster.ask(request_id="r")
        await first.next_dispatch()
        await cluster.query("cancel", "r")
        await hear_cancelled(inbox)
        assert (await cluster.query("status", "r")).state == "finished"
        assert second.unread == (0, 0)


async def test_cancelling_what_waits_for_an_earlier_turn_of_its_session_ends_it_as_cancelled(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    await cluster.begin(request_id="before", session_id="s")
    await worker.next_dispatch()
    inbox = await cluster.ask(request_id="r", session_id="s")
    assert (await cluster.query("cancel", "r")).state == "finished"
    await hear_cancelled(inbox)
    assert worker.unread == (0, 0)
