"""`mlx.requests.list` of a running controller."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from shared import subjects
from shared.bus import Bus
from shared.client import Cluster
from shared.codec import decode
from shared.errors import InvalidRequest, Unavailable
from shared.ids import LOCAL_CLIENT, ClientName
from shared.messages.request_list import RequestList
from shared.settings.nats import NatsSettings
from tests.controller.pair import running_pair
from tests.controller.running import CONTROLLER, Running, running_controller
from tests.controller.simulated_worker import WAIT_S

pytestmark = pytest.mark.anyio
SECURED = False  # no client that a server knows has such names


@pytest.fixture
async def patient(nats_settings: NatsSettings, bus: Bus) -> AsyncIterator[Running]:
    """A controller that keeps what no worker has."""
    room = {"enabled": True, "max_wait_ms": 60_000}
    async with running_controller(nats_settings, bus, waiting_room=room) as cluster:
        yield cluster


async def _asked(bus: Bus, body: bytes) -> RequestList:
    answer = await bus.request(subjects.LIST_REQUESTS, body, timeout_s=WAIT_S)
    return decode(RequestList, answer.payload)


async def test_what_runs_and_what_waits_is_listed_until_it_ends(patient: Running, bus: Bus) -> None:
    worker = await patient.worker("w1", max_batch_size=1, max_queue_depth=1)
    inboxes = [await patient.begin(request_id="r1")]
    dispatch = await worker.next_dispatch()
    await worker.emit(dispatch, 0, 1, 2, 3)
    await patient.settle()
    cluster = Cluster(bus, LOCAL_CLIENT)
    listed = await cluster.list_requests()
    (summary,) = listed.requests
    assert (listed.controller, listed.total, listed.states) == (CONTROLLER, 1, {"running": 1})
    assert (summary.request_id, summary.worker, summary.tokens) == ("r1", "w1", 3)
    assert summary.attempt == dispatch.attempt and summary.elapsed_ms > 0
    await worker.finish(dispatch)
    await inboxes[0].done()
    await patient.settle()
    assert (await cluster.list_requests()).requests == []


async def test_a_query_names_a_client_and_how_many(patient: Running, bus: Bus) -> None:
    for number in range(3):
        await patient.ask(request_id=f"r{number}")
    await patient.settle()  # messages of several clients are taken in turns
    await patient.ask(subject="mlx.infer.bob.chat", request_id="b")
    await patient.settle()
    cluster = Cluster(bus, LOCAL_CLIENT)
    all_of_them = await cluster.list_requests()
    assert [each.request_id for each in all_of_them.requests] == ["r0", "r1", "r2", "b"]
    assert all(each.reason for each in all_of_them.requests), "no worker has them: it says why"
    few = await cluster.list_requests(LOCAL_CLIENT, limit=2)
    assert ([each.request_id for each in few.requests], few.total) == (["r0", "r1"], 3)
    bobs = await cluster.list_requests(ClientName("bob"))
    assert [each.request_id for each in bobs.requests] == ["b"]
    assert (await _asked(bus, b"{}")).total == 4


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "Invalid JSON"),
        (b"no json", "Invalid JSON"),
        (b"[]", "RequestListQuery"),
        (b"null", "RequestListQuery"),
        (b"[" * 10_000, "RequestListQuery"),
        (b'{"limit": 0}', "limit"),
        (b'{"limit": 1001}', "limit"),
        (b'{"limit": "5"}', "limit"),
        (b'{"limit": NaN}', "limit"),
        (b'{"client": "a.b"}', "client"),
        (b'{"client": 5}', "client"),
        (b'{"client": "ada", "more": 1}', "more: unknown field"),
        (b'{"client": "%s"}' % (b"x" * 1000), "client"),
        (b'{"client": "%s"}' % (b"x" * 100_000), "at most 4096"),
    ],
)
async def test_a_malformed_query_is_told_what_is_wrong(
    cluster: Running, bus: Bus, body: bytes, problem: str
) -> None:
    listed = await _asked(bus, body)
    assert listed.controller == CONTROLLER and (listed.total, listed.requests) == (0, [])
    assert listed.message is not None and problem in listed.message and len(listed.message) < 500


async def test_the_client_library_raises_what_the_leader_says(cluster: Running, bus: Bus) -> None:
    client = Cluster(bus, LOCAL_CLIENT)
    with pytest.raises(InvalidRequest, match="limit"):
        await client.list_requests(limit=0)
    with pytest.raises(InvalidRequest, match="client"):
        await client.list_requests(ClientName("a.b"))
    assert (await client.list_requests(limit=1)).requests == []


async def test_a_query_without_a_reply_subject_is_ignored(cluster: Running, bus: Bus) -> None:
    for body in (b"{}", b"no json"):
        await bus.publish(subjects.LIST_REQUESTS, body)
    await cluster.settle()
    assert (await _asked(bus, b"{}")).total == 0


async def test_a_list_that_does_not_fit_into_a_message_is_cut_but_counts_all(
    patient: Running, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await patient.ask(request_id=f"r{number}", session_id=f"{number}-{'x' * 60}")
    await patient.settle()
    whole = await bus.request(subjects.LIST_REQUESTS, b"{}", timeout_s=WAIT_S)
    assert len(json.loads(whole.payload)["requests"]) == 20
    own = patient.controller._bus
    monkeypatch.setattr(type(own), "max_payload", property(lambda _: len(whole.payload) // 3))
    cut = await bus.request(subjects.LIST_REQUESTS, b"{}", timeout_s=WAIT_S)
    listed = decode(RequestList, cut.payload)
    assert len(cut.payload) <= len(whole.payload) // 3
    assert [each.request_id for each in listed.requests] == [f"r{number}" for number in range(5)]
    assert (listed.total, sum(listed.states.values())) == (20, 20)


async def test_only_the_leader_answers(nats_settings: NatsSettings, bus: Bus) -> None:
    async with running_pair(nats_settings, bus) as pair:
        answers = await bus.request_many(subjects.LIST_REQUESTS, b"{}", wait_s=0.5)
        listed = [decode(RequestList, answer.payload) for answer in answers]
        assert [each.controller for each in listed] == [pair.first.controller.id]
        await pair.first.leave()
        await pair.second.until(lambda: pair.second.serves)
        async with asyncio.timeout(WAIT_S):
            now = await _asked(bus, b"{}")
        assert now.controller == pair.second.controller.id


async def test_without_a_leader_it_is_unavailable(bus: Bus) -> None:
    with pytest.raises(Unavailable) as caught:
        await Cluster(bus, LOCAL_CLIENT).list_requests()
    assert caught.value.code == "no_controller"
