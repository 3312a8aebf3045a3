"""An answer may take as long as it takes, but not stand still."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.long_answers import CHAT
from tests.processes import ClusterProcess, cluster_process, wait_for
from tests.worker.running_agent import ENDLESS

_IDLE_MS = 1500
_ASKED: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "Hi"}],
    "logit_bias": ENDLESS,
}


@pytest.fixture(scope="module")
def cluster(tiny_model: Path) -> Iterator[ClusterProcess]:
    with cluster_process(workers=1, model=str(tiny_model)) as process:
        yield process


@pytest.fixture(scope="module")
def impatient(cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    settings = {"CLUSTER__GATEWAY__IDLE_TIMEOUT_MS": str(_IDLE_MS)}
    with gateway_process(cluster.url, settings=settings) as process:
        yield process


@pytest.fixture
def worker(cluster: ClusterProcess) -> Iterator[psutil.Process]:
    """It may be stopped, and goes on at the end."""
    process = cluster.member("worker-1")
    yield process
    process.resume()


def test_a_stream_that_stands_still_ends_with_an_error(
    impatient: GatewayProcess, worker: psutil.Process
) -> None:
    body = _ASKED | {"stream": True, "max_tokens": 900}
    events = []
    with (
        contextlib.suppress(httpx.RemoteProtocolError),  # it never looks whole
        httpx.stream("POST", impatient.url + CHAT, json=body, timeout=60) as answer,
    ):
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            events.append(json.loads(line.removeprefix("data: ")))
            if len(events) == 20:
                worker.suspend()
    error = events[-1]["error"]
    assert error["code"] == "deadline_exceeded" and "idle_timeout_ms" in error["message"]
    worker.resume()
    wait_for(lambda: impatient.open_requests() == 0, "it is over")


def test_so_does_an_answer_that_is_sent_whole(
    impatient: GatewayProcess, worker: psutil.Process
) -> None:
    worker.suspend()
    answer = httpx.post(impatient.url + CHAT, json=_ASKED | {"max_tokens": 4}, timeout=60)
    assert answer.status_code in (503, 504)


def test_who_goes_on_is_not_cut(impatient: GatewayProcess) -> None:
    whole = httpx.post(impatient.url + CHAT, json=_ASKED | {"max_tokens": 900}, timeout=120)
    assert whole.json()["usage"]["completion_tokens"] == 900
