"""`requests`: what a worker says that it does with its requests."""

import pytest

from shared.ids import ClientName
from shared.messages.control import ListRequests
from shared.messages.request_list import RequestActivity
from tests.worker.running_agent import CLIENT, RunningAgent

pytestmark = pytest.mark.anyio


async def _listed(agent: RunningAgent, **query: object) -> list[RequestActivity]:
    reply = await agent.control("requests", ListRequests.model_validate(query))
    assert reply.ok
    return reply.requests


async def test_a_worker_without_requests_lists_none(agent: RunningAgent) -> None:
    assert await _listed(agent) == []


async def test_what_runs_and_what_waits_is_listed_in_the_order_of_arrival(
    narrow: RunningAgent,
) -> None:
    running = await narrow.start(max_tokens=900)
    await running.started()
    waiting = await narrow.start(max_tokens=900)
    first, second = await _listed(narrow)
    assert (first.request_id, first.client) == (running.dispatch.request_id, CLIENT)
    assert (first.status, first.model, first.attempt) == ("running", "tiny", 0)
    assert first.tokens >= 1 and first.prompt_tokens > 0
    assert (second.request_id, second.status) == (waiting.dispatch.request_id, "queued")
    assert second.tokens == 0
    await narrow.cancel_all(waiting, running)
    assert await _listed(narrow) == []


async def test_a_query_names_a_client_and_how_many(narrow: RunningAgent) -> None:
    streams = [await narrow.start(max_tokens=900) for _ in range(3)]
    assert len(await _listed(narrow, client=CLIENT)) == 3
    assert await _listed(narrow, client=ClientName("stranger")) == []
    (only,) = await _listed(narrow, limit=1)
    assert only.request_id == streams[0].dispatch.request_id
    await narrow.cancel_all(*reversed(streams))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"limit": 0}', b'{"limit": 1001}', b'{"client": 5}', b'{"limit": NaN}']
)
async def test_a_bad_query_is_told_what_is_wrong(agent: RunningAgent, body: bytes) -> None:
    reply = await agent.control("requests", body)
    assert (reply.ok, reply.code, reply.requests) == (False, "invalid_request", [])
    assert reply.message
