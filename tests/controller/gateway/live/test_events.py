"""The cluster as a stream of events, over real HTTP from a real cluster, without API keys."""

import contextlib
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from controller.gateway.live.rights import VIEWS
from controller.gateway.live.viewer_limits import MAX_VIEWERS
from shared.version import VERSION
from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.live.viewers import EVENTS, ORDERS, order, refusal, viewing
from tests.controller.gateway.long_answers import LONG, streaming
from tests.controller.gateway.raw_http import answers, connected, received
from tests.processes import ClusterProcess, wait_for

_TABLES = {"machines", "models", "requests", "sessions"}


@pytest.fixture
def own_gateway(tiny_cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    with gateway_process(tiny_cluster.url) as process:
        yield process


def test_the_first_event_says_what_the_viewer_may_see_and_do(gateway: GatewayProcess) -> None:
    with viewing(gateway) as viewer:
        assert viewer.next() == (
            "session",
            {"rights": "read", "client": "local", "version": VERSION, "views": list(VIEWS)},
        )
        headers = viewer.response.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store" and headers["x-request-id"]


def test_every_view_is_sent_at_first_and_tables_whole(gateway: GatewayProcess) -> None:
    with viewing(gateway) as viewer:
        viewer.until(lambda viewer: viewer.values.keys() >= {*VIEWS}, "all views")
        first = viewer.first
    assert all(first[view]["whole"] for view in _TABLES if view != "requests")
    assert (first["overview"]["status"], first["overview"]["workers"]) == ("ready", 2)
    assert first["overview"]["leader"]["id"] == "controller-1"
    assert [row["id"] for row in viewer.rows("machines")] == ["worker-1", "worker-2"]
    assert first["machines"]["total"] == 2
    (model,) = viewer.rows("models")
    assert model["states"]["warm"] == 2 and model["key"] == model["id"]
    assert first["rollout"] == {"stable": 0, "last_version": 0, "rollout": None, "history": []}
    kinds = {record["kind"] for record in first["log"]["records"]}
    assert {"controller", "worker", "model"} <= kinds


def test_only_the_named_views_are_sent(gateway: GatewayProcess) -> None:
    with viewing(gateway, "log,overview") as viewer:
        came = {view for _, view in viewer.during(2.5)}
    assert came == {"session", "log", "overview"}


def test_a_running_request_is_seen_while_it_runs_and_then_gone(gateway: GatewayProcess) -> None:
    with viewing(gateway, "requests,overview") as viewer:
        with streaming(gateway, LONG | {"n": 8}) as stream:
            request_id = stream.response.headers["x-request-id"]
            key = f"local/{request_id}"
            viewer.until(
                lambda viewer: viewer.tables["requests"].rows.get(key, {}).get("tokens"),
                "it has tokens",
            )
            row = viewer.tables["requests"].rows[key]
            assert (row["client"], row["id"], row["skill"]) == ("local", request_id, "chat")
            assert row["state"] == "running" and row["worker"] in ("worker-1", "worker-2")
            assert row["status"] in ("running", "prefill", None) and row["elapsed_ms"] > 0
            assert viewer.values["requests"]["states"]["running"] >= 1
        viewer.until(lambda viewer: key not in viewer.tables["requests"].rows, "it is gone")


def test_at_most_one_event_a_second_of_each_view(gateway: GatewayProcess) -> None:
    """While everything changes all the time, and other viewers come and go."""
    with viewing(gateway) as viewer, streaming(gateway, LONG | {"n": 32}):
        viewer.until(lambda viewer: viewer.values.keys() >= {*VIEWS}, "all views")
        begun, counts = time.monotonic(), Counter[str]()
        for _ in range(8):
            with viewing(gateway) as other:
                other.next()
                counts.update(view for _, view in viewer.during(0.5))
        elapsed_s = time.monotonic() - begun
    assert counts["overview"] >= 2, "it is not still"
    assert max(counts.values()) <= elapsed_s + 1.5, (elapsed_s, counts)


@pytest.mark.parametrize("views", ["nonsense", "overview,nonsense", "Overview", "overview;log"])
def test_views_that_do_not_exist_are_refused_with_those_that_do(
    gateway: GatewayProcess, views: str
) -> None:
    refused = httpx.get(gateway.url + EVENTS, params={"views": views})
    assert refusal(refused) == (400, "invalid_request")
    assert "overview, machines, models" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "attacker.example"},
        {"host": "attacker.example:8000", "origin": "http://attacker.example:8000"},
        {"origin": "http://attacker.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"x-forwarded-for": "10.0.0.1"},
        {"forwarded": "for=10.0.0.1"},
        {"via": "1.1 proxy"},
    ],
)
def test_pages_of_others_and_those_behind_a_proxy_neither_look_nor_order(
    gateway: GatewayProcess, headers: dict[str, str]
) -> None:
    looked = httpx.get(gateway.url + EVENTS, headers=headers)
    assert refusal(looked) == (403, "not_allowed")
    assert "access-control-allow-origin" not in looked.headers
    ordered = httpx.post(gateway.url + ORDERS, headers=headers, json={"order": "pause"})
    assert refusal(ordered) == (403, "not_allowed")


def test_a_head_with_an_empty_or_missing_host_is_refused(gateway: GatewayProcess) -> None:
    for host in (b"host:\r\n", b"host: \r\n"):
        (answer,) = answers(gateway, b"GET /cluster/events HTTP/1.1\r\n" + host
                            + b"connection: close\r\n\r\n")  # fmt: skip
        assert answer.status in (400, 403), answer
    (old,) = answers(gateway, b"GET /cluster/events HTTP/1.0\r\n\r\n")
    assert old.status in (400, 403)


def test_a_connection_that_asked_only_for_the_head_goes_on(gateway: GatewayProcess) -> None:
    host = b"host: 127.0.0.1:%d\r\n" % gateway.port
    with connected(gateway) as connection:
        connection.sendall(b"HEAD /cluster/events HTTP/1.1\r\n" + host + b"\r\n")
        connection.sendall(b"GET /health HTTP/1.1\r\n" + host + b"connection: close\r\n\r\n")
        head, _, rest = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"content-type: text/event-stream" in head
    assert rest.endswith(b'{"status":"ok"}')


def test_the_gateways_own_page_may_look(gateway: GatewayProcess) -> None:
    own = {"origin": gateway.url, "sec-fetch-site": "same-origin"}
    with viewing(gateway, "overview", headers=own) as viewer:
        assert viewer.next()[0] == "session"


def test_pages_that_may_call_the_models_may_still_not_look(tiny_cluster: ClusterProcess) -> None:
    settings = {"CLUSTER__GATEWAY__CORS_ORIGINS": '["*"]'}
    with gateway_process(tiny_cluster.url, settings=settings) as process:
        headers = {"origin": "http://app.example"}
        assert httpx.get(f"{process.url}/v1/models", headers=headers).status_code == 200
        assert refusal(httpx.get(process.url + EVENTS, headers=headers)) == (403, "not_allowed")
        sent = httpx.post(process.url + ORDERS, headers=headers, json={"order": "pause"})
        assert refusal(sent) == (403, "not_allowed")


@pytest.mark.parametrize(
    "fields",
    [
        {"order": "pause"},
        {"order": "cancel", "client": "local", "request_id": "r"},
        {"order": "unload", "model": "tiny", "worker": "worker-1"},
    ],
)
def test_without_keys_no_order_is_taken_and_the_refusal_says_how(
    gateway: GatewayProcess, fields: dict[str, str]
) -> None:
    refused = order(gateway, **fields)
    assert refusal(refused) == (403, "not_allowed")
    assert "gateway keys add NAME --admin" in refused.json()["error"]["message"]


def test_the_stream_ends_well_when_the_gateway_drains(own_gateway: GatewayProcess) -> None:
    with viewing(own_gateway) as viewer:
        viewer.until(lambda viewer: "overview" in viewer.values, "it looks")
        own_gateway.process.send_signal(signal.SIGTERM)
        with pytest.raises(StopIteration):  # a broken stream would raise httpx.RemoteProtocolError
            while True:
                viewer.next()
    assert own_gateway.process.wait(timeout=20) == 0
    assert not own_gateway.logged("a request failed")


def test_no_more_viewers_than_the_maximum_and_who_leaves_makes_way(
    own_gateway: GatewayProcess,
) -> None:
    def status() -> int:
        with httpx.stream("GET", own_gateway.url + EVENTS, timeout=30) as response:
            return response.status_code

    with contextlib.ExitStack() as watching:
        last: socket.socket
        for _ in range(MAX_VIEWERS):
            last = watching.enter_context(
                socket.create_connection(("127.0.0.1", own_gateway.port), timeout=30)
            )
            host = f"host: 127.0.0.1:{own_gateway.port}\r\n\r\n"
            last.sendall(f"GET {EVENTS}?views=overview HTTP/1.1\r\n{host}".encode())
            assert last.recv(12) == b"HTTP/1.1 200"
        refused = httpx.get(own_gateway.url + EVENTS)
        assert refused.status_code == 503 and "100" in refused.json()["error"]["message"]
        assert httpx.get(f"{own_gateway.url}/v1/models").status_code == 200
        last.close()
        wait_for(lambda: status() == 200, "a place is free")
    assert not own_gateway.logged("a request failed")
