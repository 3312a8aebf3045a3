"""Answers that are not streamed to their caller: collected as they come, up to a limit."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from controller.gateway import inference_client
from controller.gateway.api_keys import ApiKey
from controller.gateway.inference_client import InferenceStream
from controller.gateway.rate_limiter import ClientRateLimiter, TokenMeter
from shared.bus import Bus
from shared.client import Cluster, connect
from shared.errors import ClusterError
from shared.ids import ClientName
from shared.messages.stream import ChoiceOutput
from shared.settings.nats import NatsSettings
from tests.access.roles import as_client
from tests.shared.client.simulated_controller import SimulatedController, chunk, done

pytestmark = pytest.mark.anyio

_KEY = ApiKey(client=ClientName("ada"))


@pytest.fixture
async def cluster(nats_settings: NatsSettings) -> AsyncIterator[Cluster]:
    async with connect(as_client(nats_settings.servers[0], "ada"), client="ada") as connected:
        yield connected


@pytest.fixture
async def controller(bus: Bus) -> SimulatedController:
    simulated = SimulatedController(bus)
    await simulated.open()
    return simulated


@pytest.mark.parametrize("limit", [100_000, 1000])
async def test_an_answer_is_whole_or_ends_with_an_error_at_the_limit(
    cluster: Cluster,
    controller: SimulatedController,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
) -> None:
    monkeypatch.setattr(inference_client, "_MAX_ANSWER_BYTES", limit)
    async with cluster.stream("hello", n=2) as stream:
        answer = InferenceStream(
            stream, time.monotonic(), 60, TokenMeter(ClientRateLimiter(), _KEY)
        )
        collecting = asyncio.ensure_future(answer.collect())
        request, request_id = await controller.next_request()
        for index in range(100):
            for choice in (0, 1):
                await controller.send(request, chunk(request_id, index, "x", index, choice=choice))
        if limit == 1000:
            with pytest.raises(ClusterError) as failed:
                await asyncio.wait_for(collecting, 30)
            assert failed.value.code == "answer_too_large"
            return
        ends = [ChoiceOutput(n, 100, [], "", finish_reason="stop") for n in (0, 1)]
        await controller.send(request, done(request_id, *ends, tokens=200))
        whole = await asyncio.wait_for(collecting, 30)
    assert [choice.text for choice in whole.choices] == ["x" * 100] * 2
    assert [choice.token_ids for choice in whole.choices] == [list(range(100))] * 2
