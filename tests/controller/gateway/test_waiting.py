"""Who waits for long hears that it is still there: comments, until the answer begins."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import psutil
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.long_answers import CHAT, LONG, QUESTION, active, streaming
from tests.processes import ClusterProcess, cluster_process, wait_for

_KEEP_ALIVE_MS = 100
_GENEROUS = 15  # times
_ASKED = QUESTION | {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def narrow_cluster(tiny_model: Path) -> Iterator[ClusterProcess]:
    """Serves one request after another, and may be silent for long."""
    settings = {
        "CLUSTER__WORKER__CONTINUOUS_BATCHING__ENABLED": "false",
        "CLUSTER__CONTROLLER__FAILOVER__MISSED_HEARTBEATS": "60",
    }
    with cluster_process(workers=1, model=str(tiny_model), settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def chatty(narrow_cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    settings = {"CLUSTER__GATEWAY__KEEP_ALIVE_MS": str(_KEEP_ALIVE_MS)}
    with gateway_process(narrow_cluster.url, settings=settings) as process:
        yield process


@contextlib.contextmanager
def _occupied(gateway: GatewayProcess, cluster: ClusterProcess) -> Iterator[None]:
    """Meanwhile the worker has more to do than it ends."""
    with streaming(gateway, LONG | {"n": 50}) as stream:
        stream.until("data: ")
        yield
    wait_for(lambda: active(cluster) == 0, "the worker is free")


@contextlib.contextmanager
def _standing_still(cluster: ClusterProcess) -> Iterator[None]:
    """Meanwhile its only worker says nothing."""
    worker = cluster.member("worker-1")
    worker.suspend()
    wait_for(lambda: worker.status() == psutil.STATUS_STOPPED, "the worker stands still")
    try:
        yield
    finally:
        worker.resume()


def _whole_answer(gateway: GatewayProcess) -> str:
    answer = httpx.post(gateway.url + CHAT, json=_ASKED, timeout=60).json()
    return str(answer["choices"][0]["message"]["content"])


def test_comments_tell_how_it_stands_until_the_answer_comes(
    chatty: GatewayProcess, narrow_cluster: ClusterProcess
) -> None:
    with contextlib.ExitStack() as waiting:
        with _occupied(chatty, narrow_cluster):
            stream = waiting.enter_context(streaming(chatty, _ASKED | {"stream": True}))
            comments = iter(lambda: stream.until(":"), ": queued")
            assert set(comments) <= {": waiting", ": accepted"}  # waiting: nothing heard so far
            assert stream.until("") == ""
            for _ in range(4):
                assert stream.until("") == ": queued" and stream.until("") == ""
        assert '"role":"assistant"' in stream.until("data: ")
        rest = list(stream.lines)
    assert rest[-2:] == ["data: [DONE]", ""]


def test_comments_come_in_time_also_when_the_cluster_says_nothing(
    chatty: GatewayProcess, narrow_cluster: ClusterProcess
) -> None:
    with contextlib.ExitStack() as waiting:
        with _occupied(chatty, narrow_cluster):
            stream = waiting.enter_context(streaming(chatty, _ASKED | {"stream": True}))
            stream.until(": queued")
            with _standing_still(narrow_cluster):
                since = time.monotonic()
                for _ in range(15):
                    stream.until(": queued")
                assert time.monotonic() - since < _GENEROUS * 15 * _KEEP_ALIVE_MS / 1000
        assert "data: [DONE]" in list(stream.lines)


def test_the_official_openai_client_waits_and_gets_the_right_answer(
    chatty: GatewayProcess, narrow_cluster: ClusterProcess
) -> None:
    expected = _whole_answer(chatty)
    with openai.OpenAI(base_url=f"{chatty.url}/v1", api_key="none", max_retries=0) as client:
        with _occupied(chatty, narrow_cluster):
            # Returns when the response begins, which here are comments.
            stream = client.chat.completions.create(**_ASKED, stream=True)
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def test_the_official_anthropic_client_waits_and_gets_the_right_answer(
    chatty: GatewayProcess, narrow_cluster: ClusterProcess
) -> None:
    expected = _whole_answer(chatty)
    body = {name: value for name, value in _ASKED.items() if name != "temperature"}
    with anthropic.Anthropic(base_url=chatty.url, api_key="none", max_retries=0) as client:
        with contextlib.ExitStack() as waiting:
            with _occupied(chatty, narrow_cluster):
                stream = waiting.enter_context(
                    client.messages.stream(**body, extra_body={"temperature": 0})
                )
            message = stream.get_final_message()
    assert [block.text for block in message.content if block.type == "text"] == [expected]
