"""Bad, huge, slow and hostile HTTP: the right error each time, and the gateway goes on."""

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.raw_http import answers
from tests.processes import ClusterProcess, wait_for

_CHAT = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
_JSON = {"content-type": "application/json"}


def _tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(autouse=True)
def _still_serves(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.post("/v1/chat/completions", json=_CHAT).status_code == 200


def _error(answer: httpx.Response) -> Any:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    return answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b"{}"],
)
def test_what_is_no_request_is_refused(http: httpx.Client, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
        answer = http.post(path, content=body, headers=_JSON)
        assert answer.status_code == 400
        assert _error(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**10}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [5]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 5}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"priority": "first"}, "priority"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [_tool("a b")]}, "tools.0.function.name"),
        ({"tools": [_tool("x"), _tool("x")]}, "tools"),
        ({"tools": [_tool("x")], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [_tool("x")], "tool_choice": _tool("y")}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "x"}]}, "functions"),
        ({"function_call": {"name": "x"}}, "function_call"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         "structured_outputs"),
        ({"reasoning_effort": "very"}, "reasoning_effort"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"chat_template_kwargs": {"a": 10**30}}, "chat_template_kwargs.a"),
        ({"messages": [{"role": "function", "name": "x", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
         "messages.0.tool_calls.0.function"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url",
          "image_url": {"url": "x"}}]}]}, "messages.0.content.0.type"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(
    http: httpx.Client, fields: dict[str, Any], param: str | None
) -> None:
    answer = http.post("/v1/chat/completions", json=_CHAT | fields)
    error = _error(answer)
    assert (answer.status_code, error["param"]) == (400, param), error
    assert answer.headers["x-should-retry"] == "false"


def test_a_key_that_stands_there_twice_is_refused(http: httpx.Client) -> None:
    body = json.dumps(_CHAT)[:-1] + ', "model": "demo"}'
    answer = http.post("/v1/chat/completions", content=body, headers=_JSON)
    assert (answer.status_code, _error(answer)["param"]) == (400, "model")


@pytest.mark.parametrize("size", [2_000_001, 100_000_000])
def test_a_huge_body_is_refused_and_the_answer_arrives(http: httpx.Client, size: int) -> None:
    answer = http.post("/v1/chat/completions", content=b"x" * size, headers=_JSON)
    assert (answer.status_code, _error(answer)["code"]) == (413, "payload_too_large")


def test_a_body_of_unknown_length_is_bounded_too(http: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 100_000

    answer = http.post("/v1/messages", content=parts(), headers=_JSON)
    assert answer.status_code == 413
    assert _error(answer)["type"] == "request_too_large"


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "x"])
def test_only_json_is_understood(http: httpx.Client, kind: str) -> None:
    answer = http.post("/v1/completions", content=b"{}", headers={"content-type": kind})
    assert answer.status_code == 400 and "application/json" in _error(answer)["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages/count_tokens"])
def test_a_body_may_come_as_gzip(http: httpx.Client, path: str) -> None:
    asked = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
    body = json.dumps({"prompt": "Hi", "max_tokens": 1} if "completions" in path else asked)
    headers = _JSON | {"content-encoding": "gzip"}
    answer = http.post(path, content=gzip.compress(body.encode()), headers=headers)
    assert answer.status_code == 200
    plain = http.post(path, content=body, headers=_JSON | {"content-encoding": "identity"})
    assert plain.json().get("usage") == answer.json().get("usage")


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"{}", 400),
        ("gzip", gzip.compress(b"{}")[:-3], 400),
        ("gzip", gzip.compress(b"{}") + b"{}", 400),
        ("gzip", gzip.compress(b"{}") * 2, 400),
        ("gzip", gzip.compress(b" " * 100_000_000), 413),  # 100 kB
        ("br", b"{}", 415),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}")), 415),
        ("", b"{}", 415),
    ],
)
def test_a_body_that_cannot_be_decoded_is_refused(
    http: httpx.Client, encoding: str, body: bytes, status: int
) -> None:
    headers = _JSON | {"content-encoding": encoding}
    answer = http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == status and _error(answer)["message"]


def test_it_says_that_it_is_there(http: httpx.Client) -> None:
    answer = http.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert http.get("/").json()["paths"] == "/openapi.json"


@pytest.mark.parametrize(
    "path",
    [
        "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/", "//v1/models", "/v1//models",
        "/v1/../metrics/x", "/%2e%2e/etc/passwd", "/v1/models/..%2f..%2fetc", "/etc/passwd%00",
        "/v1/models/" + "x" * 5000, "/V1/MODELS",
    ],
)  # fmt: skip
def test_other_paths_lead_nowhere(gateway: GatewayProcess, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    (answer,) = answers(gateway, request.encode())
    assert answer.status == 404 and answer.error["code"] in ("not_found", "model_not_found")


@pytest.mark.parametrize(
    ("request_line", "headers", "statuses"),
    [
        (b"GET http://evil.example/health HTTP/1.1", b"", [200]),
        (b"GET //evil.example/health HTTP/1.1", b"", [404]),
        (b"GET /v1/models/%00%ff%1b HTTP/1.1", b"", [404]),
        (b"GET /%0d%0aset-cookie:x%00 HTTP/1.1", b"", [404]),
        (b"GET /v1/responses/%ff%0a HTTP/1.1", b"", [404]),
        (b"GET /health?" + b"a" * 60_000 + b" HTTP/1.1", b"", [431]),
        (b"GET /v1/models HTTP/1.1", b"x-request-id: a\x1b[2J\r\n", [400]),
        (b"GET /v1/models HTTP/1.1", b"x-request-id: a\xc2\x9b\r\n", [200]),
        (b"GET /v1/models HTTP/1.1", b"authorization: Bearer " + b"k" * 1_000_000 + b"\r\n", [431]),
        (b"GET /v1/models HTTP/1.1", b"authorization: Bearer \xff\xfe\r\n", [200]),
        (b"POST /v1/completions HTTP/1.1", b"content-type: \xff\xfe\r\n", [400]),
        (b"POST /v1/completions HTTP/1.1", b"content-encoding: \xff\r\n", [415]),
        (b"POST /v1/completions HTTP/1.1", b"traceparent: 00-\xff\r\n", [400]),
        (b"POST /v1/completions HTTP/1.1", b"content-length: 9223372036854775807\r\n", [413]),
        (b"POST /v1/completions HTTP/1.1", b"content-length: 18446744073709551616\r\n", [400]),
        (b"GET /health HTTP/1.1", b"expect: 100-continue\r\n", [200]),
        (b"PRI * HTTP/2.0", b"", [400]),
        (b"X" * 5000 + b" / HTTP/1.1", b"", [400]),
        (b"PROPFIND /health HTTP/1.1", b"", [405]),
        (b"OPTIONS * HTTP/1.1", b"", [404]),
    ],
    ids=range(20),
)
def test_odd_requests_get_one_clear_answer(
    gateway: GatewayProcess, request_line: bytes, headers: bytes, statuses: list[int]
) -> None:
    request = request_line + b"\r\nhost: x\r\nconnection: close\r\n" + headers + b"\r\n"
    found = answers(gateway, request)
    assert [answer.status for answer in found] == statuses
    assert not gateway.logged("a request failed")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /v1/models HTTP/1.1\r\n" + "x-a: b\r\n" * 10_000, 431),
        ("GET /v1/models HTTP/1.1\r\n" + "x-a: b\r\n" * 150, 431),
        ("GET /v1/models HTTP/1.1\r\nx-a: " + "b" * 300_000, 431),
        ("GET /" + "x" * 300_000, 431),
        ("NONSENSE\r\n", 400),
        ("\x16\x03\x01\x02", 400),
    ],
)
def test_a_bad_head_is_refused(gateway: GatewayProcess, head: str, status: int) -> None:
    (answer,) = answers(gateway, head.encode() + b"\r\n\r\n")
    assert answer.status == status
    assert answer.error["code"] in ("headers_too_large", "invalid_request")


def test_whoever_is_too_slow_is_let_go(tiny_cluster: ClusterProcess) -> None:
    slow = {
        "CLUSTER__GATEWAY__HEADER_TIMEOUT_MS": "500",
        "CLUSTER__GATEWAY__BODY_TIMEOUT_MS": "500",
    }
    with gateway_process(tiny_cluster.url, settings=slow) as process:
        half = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n"
        for sent in ("", "GET /v1/mod", half, half + "\r\n{"):
            (answer,) = answers(process, sent.encode())
            assert (answer.status, answer.error["code"]) == (408, "request_timeout"), sent


def test_who_reads_nothing_is_let_go_and_its_request_ends(tiny_cluster: ClusterProcess) -> None:
    settings = {"CLUSTER__GATEWAY__SEND_TIMEOUT_MS": "500"}
    body = json.dumps(
        _CHAT
        | {"max_tokens": 900, "n": 64, "stream": True, "logprobs": True, "top_logprobs": 20}
        | {"logit_bias": {str(token): -100 for token in range(3)}}
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with gateway_process(tiny_cluster.url, settings=settings) as process:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", process.port))
            connection.sendall((head + body).encode())
            count = 'mlx_gateway_requests_total{client="local",code="slow_consumer"'
            wait_for(lambda: count in httpx.get(f"{process.url}/metrics").text, "it was let go")
