"""Many callers at once: everybody is answered, and who is refused is told when to come again."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.processes import ClusterProcess

pytestmark = pytest.mark.anyio

_LIMIT_S = 240
_ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 8,
    "temperature": 0,
}
_EVERYBODY = httpx.Limits(max_connections=None, max_keepalive_connections=0)


async def _post(client: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body)


async def _at_once(url: str, clients: int) -> list[httpx.Response]:
    """Each over a connection of its own; every other one streams."""
    async with httpx.AsyncClient(base_url=url, timeout=_LIMIT_S, limits=_EVERYBODY) as client:
        bodies = [{**_ASKED, "stream": number % 2 == 1} for number in range(clients)]
        return list(await asyncio.gather(*(_post(client, body) for body in bodies)))


@pytest.mark.parametrize("clients", [64, 512])
async def test_nobody_hangs(clients: int, gateway: GatewayProcess) -> None:
    answers = await _at_once(gateway.url, clients)
    whole, streamed = answers[0::2], answers[1::2]
    texts = {a.json()["choices"][0]["message"]["content"] for a in whole if a.status_code == 200}
    assert len(texts) == 1, "the answer does not depend on how many ask"
    assert all(a.text.endswith("data: [DONE]\n\n") for a in streamed if a.status_code == 200)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert [a.json()["error"] for a in refused if a.json()["error"]["code"] != "queue_full"] == []
    _assert_told_when_to_come_again(refused)


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="Linux only")
def test_a_gateway_may_have_as_many_open_files_as_connections(gateway: GatewayProcess) -> None:
    soft, hard = psutil.Process(gateway.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft >= min(1024 + 4096, hard)


async def test_idle_connections_make_room(tiny_cluster: ClusterProcess) -> None:
    few = {"CLUSTER__GATEWAY__MAX_CONNECTIONS": "40"}
    with gateway_process(tiny_cluster.url, settings=few) as process:
        at = urlsplit(process.url)
        idle = [(await asyncio.open_connection(at.hostname, at.port))[1] for _ in range(100)]
        answers = await _at_once(process.url, 24)
        assert {answer.status_code for answer in answers} == {200}
        for writer in idle:
            writer.close()


def _assert_told_when_to_come_again(refused: list[httpx.Response]) -> None:
    for answer in refused:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert int(answer.headers["retry-after-ms"]) > 0
        assert answer.headers["x-should-retry"] == "true"
