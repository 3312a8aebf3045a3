"""A gateway that is told to stop: what runs ends well, what is new is refused, nothing is left."""

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.long_answers import CHAT, LONG, active, streaming, until_active
from tests.controller.gateway.raw_http import connected, received
from tests.processes import ClusterProcess, wait_for

_AT_ONCE_STATUS = 130
_LONGER = LONG | {"n": 16}
_TOO_LONG = LONG | {"n": 64}
"""Fill a worker's batch for seconds: so both of two requests are still there when somebody looks.
The second may be routed to the same worker and wait until the first is nearly done, so a test sends
first the request whose tokens it waits for."""
_WHOLE = {"stream": False}


@pytest.fixture
def leaving(tiny_cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    """A gateway of the test's own, in front of a cluster that has nothing to do."""
    until_active(tiny_cluster, 0)
    with gateway_process(tiny_cluster.url) as process:
        yield process


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def _ask_whole(
    threads: ThreadPoolExecutor, gateway: GatewayProcess, body: dict[str, Any]
) -> "Future[httpx.Response]":
    return threads.submit(httpx.post, gateway.url + CHAT, json=body | _WHOLE, timeout=60)


def _half_a_request(gateway: GatewayProcess) -> tuple[socket.socket, bytes]:
    """A connection on which a request has begun, and the rest of it."""
    body = json.dumps(LONG | _WHOLE).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    connection = connected(gateway)
    connection.sendall(head + body[:10])
    return connection, body[10:]


def _listens(gateway: GatewayProcess) -> bool:
    try:
        connected(gateway).close()
    except ConnectionRefusedError:
        return False
    return True


def test_what_runs_goes_on_to_its_end(
    leaving: GatewayProcess, tiny_cluster: ClusterProcess, threads: ThreadPoolExecutor
) -> None:
    with streaming(leaving, _LONGER) as stream:
        stream.until("data: ")
        whole = _ask_whole(threads, leaving, _LONGER)
        wait_for(lambda: leaving.open_requests() == 2, "both were admitted")
        until_active(tiny_cluster, 2)
        leaving.process.send_signal(signal.SIGTERM)
        rest = list(stream.lines)
    assert rest[-2:] == ["data: [DONE]", ""]
    assert sum('"finish_reason":"length"' in line for line in rest) == 16
    answer = whole.result()
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 16 * LONG["max_tokens"]
    assert leaving.process.wait(timeout=30) == 0
    assert active(tiny_cluster) == 0


def test_what_is_new_is_refused(leaving: GatewayProcess, tiny_cluster: ClusterProcess) -> None:
    kept = connected(leaving)
    half, rest = _half_a_request(leaving)
    with kept, half, streaming(leaving, LONG | {"n": 4}) as stream:
        stream.until("data: ")
        leaving.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not _listens(leaving), "no more connections are taken")
        assert received(kept) == b""
        half.sendall(rest)
        head, _, body = received(half).partition(b"\r\n\r\n")
        assert "data: [DONE]" in list(stream.lines)
    assert head.startswith(b"HTTP/1.1 503 ")
    for line in (b"retry-after: 1", b"x-should-retry: true", b"connection: close"):
        assert line in head.split(b"\r\n")
    assert json.loads(body)["error"]["code"] == "draining"
    assert leaving.process.wait(timeout=30) == 0


def test_once_it_is_not_ready_it_stays_so(leaving: GatewayProcess) -> None:
    seen = []
    with streaming(leaving, LONG) as stream, httpx.Client(base_url=leaving.url) as client:
        stream.until("data: ")
        leaving.process.send_signal(signal.SIGTERM)
        try:
            while True:
                answer = client.get("/ready")
                seen.append((answer.status_code, answer.json().get("error", {}).get("code")))
        except httpx.TransportError:
            pass  # nobody listens any more
        assert "data: [DONE]" in list(stream.lines)
    ready = seen.count((200, None))
    assert seen == [(200, None)] * ready + [(503, "draining")] * (len(seen) - ready)


def test_a_second_signal_ends_it_at_once_and_no_stream_looks_whole(
    leaving: GatewayProcess, tiny_cluster: ClusterProcess, threads: ThreadPoolExecutor
) -> None:
    with streaming(leaving, _TOO_LONG) as stream:
        stream.until("data: ")
        whole = _ask_whole(threads, leaving, _TOO_LONG)
        until_active(tiny_cluster, 2)
        leaving.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not _listens(leaving), "it has heard the first")
        leaving.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.TransportError):
            for line in stream.lines:
                assert line != "data: [DONE]"
    with pytest.raises(httpx.TransportError):
        whole.result()
    assert leaving.process.wait(timeout=30) == _AT_ONCE_STATUS
    until_active(tiny_cluster, 0)


def test_who_takes_too_long_is_told_and_cancelled(
    tiny_cluster: ClusterProcess, threads: ThreadPoolExecutor
) -> None:
    settings = {"CLUSTER__GATEWAY__DRAIN_TIMEOUT_MS": "300"}
    with gateway_process(tiny_cluster.url, settings=settings) as leaving:
        half, _ = _half_a_request(leaving)
        with half, streaming(leaving, _TOO_LONG) as stream:
            stream.until("data: ")
            whole = _ask_whole(threads, leaving, _TOO_LONG)
            until_active(tiny_cluster, 2)
            leaving.process.send_signal(signal.SIGTERM)
            last = ""
            with pytest.raises(httpx.TransportError):
                for line in stream.lines:
                    last = line or last
            refused = received(half).partition(b"\r\n\r\n")[2]
        for answer in (last.removeprefix("data: "), whole.result().text, refused):
            assert json.loads(answer)["error"]["code"] == "draining"
        assert (whole.result().status_code, whole.result().headers["retry-after"]) == (503, "1")
        assert leaving.process.wait(timeout=30) == 0
    until_active(tiny_cluster, 0)
