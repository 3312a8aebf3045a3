"""kill -9 behind and before an HTTP client: it sees an error or the whole answer, never a part that
looks whole."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.asking import Asker
from tests.processes import ClusterProcess, cluster_process, wait_until

pytestmark = pytest.mark.anyio

_LIMIT_S = 60
_CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me"}],
    "max_tokens": 60_000,
    "temperature": 0,
}
_MESSAGES: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "Tell me"}],
    "max_tokens": 60_000,
    "temperature": 0,
}
_GOOD_ENDS = (b"[DONE]", b"message_stop", b'"finish_reason":"', b'"stop_reason":"')


@dataclass
class Answer:
    """What a caller got.

    Attributes:
        broken: the connection broke off before the end of the response.
        ended: nothing more comes.
    """

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    broken: bool = False
    ended: bool = False

    @property
    def looks_whole(self) -> bool:
        return self.status == 200 and any(end in self.body for end in _GOOD_ENDS)

    @property
    def error(self) -> dict[str, Any]:
        """That of the body, or of the last event."""
        last = bytes(self.body).strip().rpartition(b"data: ")[2]
        said: dict[str, Any] = json.loads(last)["error"]
        return said

    @property
    def text(self) -> str:
        """Of a streamed chat."""
        events = [line for line in self.body.split(b"\n\n") if line.startswith(b"data: {")]
        choices = [json.loads(event.removeprefix(b"data: "))["choices"] for event in events]
        return "".join(choice["delta"].get("content") or "" for (choice,) in choices)


@pytest.fixture(scope="module")
def cluster(roomy_model: Path) -> Iterator[ClusterProcess]:
    """What is killed in it is started again; nobody waits for that."""
    with _cluster(roomy_model, max_wait_ms=200) as cluster:
        yield cluster


def _cluster(
    model: Path, *, max_wait_ms: int, migration_limit: int = 3
) -> contextlib.AbstractContextManager[ClusterProcess]:
    settings = {
        "CLUSTER__CONTROLLER__WAITING_ROOM__MAX_WAIT_MS": str(max_wait_ms),
        "CLUSTER__CONTROLLER__FAILOVER__MIGRATION_LIMIT": str(migration_limit),
    }
    flags = ("--http-port", "0")
    return cluster_process(model=str(model), arguments=flags, settings=settings)


@pytest.fixture
async def http(cluster: ClusterProcess) -> AsyncIterator[httpx.AsyncClient]:
    """To a cluster that serves, whatever an earlier test did to it."""
    async with httpx.AsyncClient(base_url=cluster.ready["http_url"], timeout=_LIMIT_S) as client:
        await wait_until(lambda: _serves(client), _LIMIT_S)
        yield client


async def _serves(client: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.TransportError):
        asked = {**_CHAT, "max_tokens": 2, "model": "chat"}
        return (await client.post("/v1/chat/completions", json=asked)).status_code == 200
    return False


@contextlib.asynccontextmanager
async def _under_way(client: httpx.AsyncClient, **fields: Any) -> AsyncIterator[list[Answer]]:
    """Streams of both APIs that have begun, and a whole answer that is awaited; on leaving, all
    have come to their end."""
    streams = [Answer(), Answer()]
    whole = Answer()
    tasks = [
        asyncio.create_task(_ask(client, "/v1/chat/completions", streams[0], _CHAT, True, fields)),
        asyncio.create_task(_ask(client, "/v1/messages", streams[1], _MESSAGES, True, fields)),
        asyncio.create_task(_ask(client, "/v1/chat/completions", whole, _CHAT, False, fields)),
    ]

    async def begun() -> bool:
        return all(stream.body.count(b"\n\n") > 20 for stream in streams)

    await wait_until(begun, _LIMIT_S)
    yield [*streams, whole]
    async with asyncio.timeout(_LIMIT_S):
        await asyncio.gather(*tasks)


async def _ask(
    client: httpx.AsyncClient,
    path: str,
    answer: Answer,
    body: dict[str, Any],
    stream: bool,
    fields: dict[str, Any],
) -> None:
    try:
        asked = {**body, **fields, "stream": stream}
        async with client.stream("POST", path, json=asked) as response:
            answer.status = response.status_code
            async for part in response.aiter_raw():
                answer.body += part
    except httpx.TransportError:
        answer.broken = True
    finally:
        answer.ended = True


async def test_a_killed_gateway_breaks_its_streams_off_and_leaves_nothing_running(
    cluster: ClusterProcess, http: httpx.AsyncClient
) -> None:
    async with _under_way(http) as answers:
        _process(cluster, "gateway --nats").kill()
    assert [answer.broken for answer in answers] == [True, True, True]
    assert [bytes(answer.body[-500:]) for answer in answers if answer.looks_whole] == []
    await _until_idle(cluster)


async def test_a_killed_worker_is_told_as_an_error_that_may_be_tried_again(
    roomy_model: Path,
) -> None:
    """Where no answer moves to another worker, or to the same one when it is back."""
    with _cluster(roomy_model, max_wait_ms=200, migration_limit=0) as cluster:
        async with httpx.AsyncClient(base_url=cluster.ready["http_url"], timeout=_LIMIT_S) as http:
            await wait_until(lambda: _serves(http), _LIMIT_S)
            async with _under_way(http) as answers:
                cluster.member("worker-1").kill()
    *streams, whole = answers
    assert [bytes(answer.body[-500:]) for answer in answers if answer.looks_whole] == []
    for stream in streams:
        assert stream.status == 200 and stream.broken, "after the error it does not end well either"
        assert stream.error["message"]
    assert (whole.status, whole.broken) == (503, False)
    assert streams[0].error["code"] == whole.error["code"] == "worker_lost"


async def test_streams_go_on_when_their_only_worker_is_back(roomy_model: Path) -> None:
    asked = {**_CHAT, "max_tokens": 1500}
    with _cluster(roomy_model, max_wait_ms=60_000) as cluster:
        url = cluster.ready["http_url"]
        async with httpx.AsyncClient(base_url=url, timeout=_LIMIT_S) as http:
            await wait_until(lambda: _serves(http), _LIMIT_S)
            undisturbed = Answer()
            await _ask(http, "/v1/chat/completions", undisturbed, asked, True, {})
            async with _under_way(http, max_tokens=1500) as answers:
                cluster.member("worker-1").kill()
    assert all(answer.looks_whole and not answer.broken for answer in answers)
    assert answers[0].text == undisturbed.text and len(undisturbed.text) > 1000


async def test_streams_go_on_behind_a_killed_nats_server(
    cluster: ClusterProcess, http: httpx.AsyncClient
) -> None:
    asked = {**_CHAT, "max_tokens": 1500}
    undisturbed = Answer()
    await _ask(http, "/v1/chat/completions", undisturbed, asked, True, {})
    assert undisturbed.looks_whole and len(undisturbed.text) > 1000
    async with _under_way(http, max_tokens=1500) as answers:
        _nats(cluster).kill()
    assert all(answer.looks_whole and not answer.broken for answer in answers)
    assert answers[0].text == undisturbed.text
    body = json.loads(answers[2].body)
    assert body["choices"][0]["message"]["content"] == undisturbed.text


async def test_streams_that_fall_silent_for_good_end_in_an_error(
    cluster: ClusterProcess, http: httpx.AsyncClient
) -> None:
    async with _under_way(http) as answers:
        _nats(cluster).send_signal(signal.SIGSTOP)
        try:

            async def over() -> bool:
                return all(answer.ended for answer in answers)

            await wait_until(over, _LIMIT_S)
        finally:
            _nats(cluster).send_signal(signal.SIGCONT)
    *streams, whole = answers
    assert [bytes(answer.body[-500:]) for answer in answers if answer.looks_whole] == []
    assert all(stream.broken for stream in streams)
    assert (whole.status, whole.error["code"]) == (503, "stream_silent")
    await _until_idle(cluster)


def _process(cluster: ClusterProcess, *words: str) -> psutil.Process:
    (process,) = cluster.find(*words)
    return process


def _nats(cluster: ClusterProcess) -> psutil.Process:
    """The server itself, not what holds it."""
    (process,) = [p for p in cluster.processes() if p.name() == "nats-server"]
    return process


async def _until_idle(cluster: ClusterProcess) -> None:
    async with Asker.connect(cluster) as asker:
        await asker.until_idle(_LIMIT_S)
