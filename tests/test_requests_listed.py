"""Requests that have not ended, of a whole cluster: listed, with what workers do, and cancelled;
models pinned by order."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from shared.client import Cluster, connect
from shared.ids import ClientName, ModelId, WorkerId
from shared.messages.control import ListRequests, LoadModel, PinModel
from tests.access.roles import as_client, as_tester
from tests.processes import ClusterProcess, cluster_process
from tests.shared.cli.simulated_cluster import run

pytestmark = pytest.mark.anyio

WORKER = WorkerId("worker-1")
MODEL = ModelId("demo")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcess]:
    with cluster_process() as cluster:  # the demo model: slow enough to be looked at
        yield cluster


async def _long(cluster: Cluster, request_id: str) -> "asyncio.Task[Any]":
    """A request that generates for minutes, once its first token is there."""
    question = "Count from 1 to 1000, each number on a line of its own."
    stream = cluster.stream(question, request_id=request_id, max_tokens=4000, temperature=0)
    began = asyncio.Event()

    async def read() -> Any:
        async for _ in stream:
            began.set()
        return stream.finish_reason

    reading = asyncio.create_task(read())
    await asyncio.wait_for(began.wait(), 30)
    return reading


async def test_a_running_request_is_listed_and_cancelled(cluster: ClusterProcess) -> None:
    async with connect(as_client(cluster.url)) as client, connect(as_tester(cluster.url)) as admin:
        reading = await _long(client, "long")
        listed = await admin.list_requests()
        (request,) = listed.requests
        assert (listed.total, listed.states) == (1, {"running": 1})
        assert (request.request_id, request.worker, request.attempt) == ("long", WORKER, 1)
        assert request.client == client.client and request.elapsed_ms > 0
        assert not (await admin.list_requests(ClientName("somebody"))).requests

        reply = await admin.control(WORKER, ListRequests())
        (activity,) = reply.requests
        assert (activity.request_id, activity.status) == ("long", "running")
        assert activity.tokens > 0 and activity.prompt_tokens > 0

        ran = await run("requests", "--nats", cluster.url, columns=140)
        assert [line.split()[0] for line in ran.out.splitlines()] == ["request", "long"]
        ran = await run("requests", "ls", "--json", "--nats", cluster.url)
        assert json.loads(ran.out)["requests"][0]["request_id"] == "long"
        ran = await run("requests", "cancel", "long", "--nats", cluster.url)
        assert (ran.status, ran.out) == (0, "long is cancelled\n")
        finish_reason = await asyncio.wait_for(reading, 30)
        assert finish_reason == "cancelled"
        assert not (await admin.list_requests()).requests


async def test_who_cancels_what_is_not_there_is_told_so(cluster: ClusterProcess) -> None:
    ran = await run("requests", "cancel", "nothing", "--nats", cluster.url)
    assert ran.status == 1 and "no request 'nothing' is waiting or running" in ran.err
    ran = await run("requests", "--client", "no.name", "--nats", cluster.url)
    assert ran.status == 1 and "no client has the name 'no.name'" in ran.err
    ran = await run("requests", "--nats", cluster.url)
    assert ran.out == "No request is waiting or running.\n"


async def test_a_model_is_pinned_and_unpinned_by_order(cluster: ClusterProcess) -> None:
    async with connect(as_tester(cluster.url)) as admin:
        (model,) = (await admin.control(WORKER, LoadModel(model=MODEL))).models
        assert not model.pinned
        ran = await run("models", "pin", MODEL, "--nats", cluster.url)
        assert ran.out == f"worker-1: {MODEL} is pinned\n"
        (model,) = (await admin.control(WORKER, LoadModel(model=MODEL))).models
        assert model.pinned
        ran = await run("models", "unpin", MODEL, "--nats", cluster.url)
        assert ran.status == 0
        (model,) = (await admin.control(WORKER, LoadModel(model=MODEL))).models
        assert not model.pinned
        refused = await admin.control(WORKER, PinModel(model=ModelId("nothing")))
        assert (refused.ok, refused.code) == (False, "unknown_model")
