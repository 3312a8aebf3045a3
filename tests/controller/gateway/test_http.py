"""HTTP/1.1 to the letter: connections that are kept, bodies of every framing, and requests that
two readers would take for different ones. Each gets the right answer, or the right error."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess
from tests.controller.gateway.long_answers import CHAT, LONG, QUESTION
from tests.controller.gateway.raw_http import answers, connected, parsed, received
from tests.processes import wait_for

_BODY = json.dumps(QUESTION | {"max_tokens": 2}).encode()
_HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n"
_LAST = b"connection: close\r\n"
_POST = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
_LENGTH = b"content-length: %d\r\n" % len(_BODY)
_CHUNKED = b"transfer-encoding: chunked\r\n"
_END = b"\r\n"
_GETS = ["/health", "/ready", "/metrics", "/openapi.json", "/v1/models", "/v1/models/chat"]
_POSTS = [CHAT, "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"]


@pytest.fixture(autouse=True)
def _still_serves(http: httpx.Client, gateway: GatewayProcess) -> Iterator[None]:
    yield
    assert http.post(CHAT, content=_BODY).status_code == 200
    assert not gateway.logged("a request failed")


def _chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


# Connections that are kept.


def test_two_requests_on_one_connection(gateway: GatewayProcess) -> None:
    with connected(gateway) as connection:
        connection.sendall(_POST + _LENGTH + _END + _BODY)
        data = b""
        while not (first := parsed(data)):
            data += connection.recv(65536)
        connection.sendall(_HEALTH + _LAST + _END)
        (second,) = parsed(received(connection))
    assert (first[0].status, second.status) == (200, 200)
    assert json.loads(first[0].body)["object"] == "chat.completion"
    assert json.loads(second.body) == {"status": "ok"}


def test_requests_that_do_not_wait_are_answered_in_their_order(gateway: GatewayProcess) -> None:
    sent = _POST + _LENGTH + _END + _BODY
    several = answers(gateway, sent * 3 + _HEALTH + _END + sent + _HEALTH + _LAST + _END)
    assert [answer.status for answer in several] == [200] * 6
    assert ["choices" in json.loads(answer.body) for answer in several] == [
        True, True, True, False, True, False,
    ]  # fmt: skip
    assert len({answer.headers["x-request-id"] for answer in several}) == 6


def test_what_comes_after_the_last_request_is_not_looked_at(gateway: GatewayProcess) -> None:
    (only,) = answers(gateway, _HEALTH + _LAST + _END + _HEALTH + _END)
    assert only.status == 200


@pytest.mark.parametrize(
    "next_request",
    [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 150 + _END, b"\x16\x03\x01\x02"],
)
def test_a_bad_request_does_not_get_the_answer_of_the_one_before(
    gateway: GatewayProcess, next_request: bytes
) -> None:
    (only,) = answers(gateway, _POST + _LENGTH + _END + _BODY + next_request)
    assert only.status == 200 and "choices" in json.loads(only.body)


def test_a_good_request_behind_a_bad_one_is_not_looked_at(gateway: GatewayProcess) -> None:
    for bad in (b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 150, _HEALTH + b"host: y\r\n"):
        (only,) = answers(gateway, bad + _END + _HEALTH + _END)
        assert only.status in (400, 431)
        (only,) = answers(gateway, _POST + _LENGTH + _END + _BODY + bad + _END + _HEALTH + _END)
        assert only.status == 200 and "choices" in json.loads(only.body)


def test_a_bad_body_behind_another_request_does_not_either(gateway: GatewayProcess) -> None:
    (only,) = answers(gateway, _POST + _LENGTH + _END + _BODY + _POST + _CHUNKED + _END + b"zz\r\n")
    assert only.status == 200 and "choices" in json.loads(only.body)


def test_nothing_is_written_into_a_stream_that_is_on_its_way(gateway: GatewayProcess) -> None:
    body = json.dumps(LONG | {"n": 4}).encode()
    with connected(gateway) as connection:
        connection.sendall(_POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        data = connection.recv(65536)
        connection.sendall(b"NONSENSE\r\n\r\n")
        (stream,) = parsed(data + received(connection))
    assert stream.status == 200 and stream.body.endswith(b"data: [DONE]\n\n")
    assert b"error" not in stream.body


def _hung_up(http: httpx.Client) -> int:
    """How many requests ended because their caller had gone."""
    lines = http.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("mlx_gateway_requests_total")]
    return sum(int(float(line.split()[-1])) for line in counts if 'code="client_gone"' in line)


@pytest.mark.parametrize("more", [b"", _HEALTH + _END, (_POST + _LENGTH + _END + _BODY) * 2])
def test_who_hangs_up_ends_its_request_whatever_stands_behind_it(
    gateway: GatewayProcess, http: httpx.Client, more: bytes
) -> None:
    before = _hung_up(http)
    body = json.dumps(LONG | {"n": 64}).encode()
    with connected(gateway) as connection:
        head = _POST + b"content-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body + more)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    wait_for(lambda: _hung_up(http) == before + 1, "the request has ended")


def test_a_body_that_turns_bad_before_it_gets_leave_is_refused(gateway: GatewayProcess) -> None:
    head = _POST + _CHUNKED + b"expect: 100-continue\r\n\r\n"
    (answer,) = answers(gateway, head + b"zz\r\n")
    assert answer.status == 400


# Versions and methods.


def test_http_1_0_is_answered_and_its_connection_closed(gateway: GatewayProcess) -> None:
    for head in (
        b"GET /health HTTP/1.0\r\n",
        b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n",
    ):
        (answer,) = answers(gateway, head + _END)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert json.loads(answer.body) == {"status": "ok"}


@pytest.mark.parametrize("version", [b"HTTP/3.0", b"HTTP/1.x", b"HTTP/1.10", b"FTP/1"])
def test_other_versions_are_refused(gateway: GatewayProcess, version: bytes) -> None:
    (answer,) = answers(gateway, b"GET /health %b\r\nhost: x\r\n\r\n" % version)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


def test_head_is_get_without_the_body(http: httpx.Client) -> None:
    for path in _GETS:
        head = http.head(path)
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == http.get(path).headers["content-type"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "TRACE"])
def test_what_a_path_does_not_take_is_refused_with_what_it_takes(
    http: httpx.Client, method: str
) -> None:
    taken = [(path, "POST") for path in _POSTS]
    taken += [(path, "GET, HEAD") for path in _GETS if method != "HEAD"]
    for path, methods in taken:
        answer = http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods), path
        assert not [name for name in answer.headers if name.startswith("access-control")]
        if method != "HEAD":
            assert f"allows {methods}, not {method}" in answer.json()["error"]["message"]
    assert http.request(method, "/nowhere").status_code == 404


def test_nobody_is_connected_elsewhere(gateway: GatewayProcess) -> None:
    for target in (b"example.com:443", b"/health"):
        (answer,) = answers(gateway, b"CONNECT %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
        assert answer.status == 400


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_offer_of_another_protocol_is_passed_over(
    gateway: GatewayProcess, protocol: bytes
) -> None:
    """Java's client makes one with each of its requests, which have bodies all the same."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + _END
    asked = _POST + offer + b"HTTP2-Settings: AAMAAABkAAQBAAAA\r\n"
    health = _HEALTH + offer + _END
    several = answers(
        gateway,
        asked + _LENGTH + _END + _BODY + asked + _CHUNKED + _END + _chunks(_BODY) + health * 50,
        _HEALTH + _LAST + _END,
    )
    assert [answer.status for answer in several] == [200] * 53
    assert all("choices" in json.loads(answer.body) for answer in several[:2])
    assert json.loads(several[2].body) == {"status": "ok"}


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_an_offer_with_the_last_request_is_passed_over_too(
    gateway: GatewayProcess, version: bytes
) -> None:
    offer = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    for head, body in ((b"GET /health", b""), (b"POST " + CHAT.encode(), _BODY)):
        length = b"content-length: %d\r\n" % len(body) if body else b""
        request = b"%b %b\r\nhost: x\r\n" % (head, version) + length + offer + _END + body
        (answer,) = answers(gateway, request + _HEALTH + _END)
        assert answer.status == 200 and answer.headers["connection"] == "close"


# Bodies.


def test_a_body_that_waits_for_leave_gets_it(gateway: GatewayProcess) -> None:
    with connected(gateway) as connection:
        connection.sendall(_POST + _LENGTH + _LAST + b"expect: 100-continue\r\n\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(_BODY)
        (answer,) = parsed(received(connection))
    assert answer.status == 200


def test_a_body_that_is_not_taken_gets_no_leave(gateway: GatewayProcess) -> None:
    head = _POST + b"content-length: 900000000\r\nexpect: 100-continue\r\n\r\n"
    (answer,) = answers(gateway, head)
    assert (answer.status, answer.error["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize(
    "body",
    [
        _chunks(_BODY),
        _chunks(*(_BODY[at : at + 1] for at in range(len(_BODY)))),
        b"%x;name=value\r\n%b\r\n0\r\nx-trailer: y\r\n\r\n" % (len(_BODY), _BODY),
    ],
)
def test_a_body_in_chunks_is_put_together(gateway: GatewayProcess, body: bytes) -> None:
    (answer,) = answers(gateway, _POST + _CHUNKED + _LAST + _END + body)
    assert answer.status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n" + _BODY, b"-5\r\n" + _BODY, b"0x5\r\n" + _BODY, b"f" * 30 + b"\r\n" + _BODY,
        b"5\r\n" + _BODY + b"\r\n0\r\n\r\n", b"%x\n%b\n0\n\n" % (len(_BODY), _BODY),
        b"\r\n" + _BODY,
    ],
)  # fmt: skip
def test_bad_chunks_are_refused(gateway: GatewayProcess, body: bytes) -> None:
    (answer,) = answers(gateway, _POST + _CHUNKED + _END + body)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "framing",
    [
        _LENGTH + _CHUNKED,
        _CHUNKED + _LENGTH,
        _LENGTH + b"content-length: 3\r\n",
        _LENGTH + _LENGTH,
        b"content-length: 3, 3\r\n",
        b"content-length: +3\r\n",
        b"content-length: -1\r\n",
        b"content-length: 0x10\r\n",
        b"content-length: 1 0\r\n",
        b"content-length: \r\n",
        b"content-length: 99999999999999999999999\r\n",
        _LENGTH + b"transfer-encoding: identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding: chunked\r\n" * 2,
        b"transfer-encoding:\x0bchunked\r\n",
    ],
)
def test_a_body_whose_end_is_ambiguous_is_refused(gateway: GatewayProcess, framing: bytes) -> None:
    """And no part of it is taken for another request."""
    hidden = b"0\r\n\r\n" + _HEALTH + _END
    (answer,) = answers(gateway, _POST + framing + _END + hidden)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    assert answer.headers["connection"] == "close"


# Heads.


@pytest.mark.parametrize(
    "lines",
    [
        b"x(y): 1\r\n", b"x\x00y: 1\r\n", b"x\xc3\xa9: 1\r\n", b"x y: 1\r\n", b"x : 1\r\n",
        b": 1\r\n",
        b"x\r\n", b"x: a\x00b\r\n", b"x: a\rb\r\n", b"x: a\nb: c\r\n", b"x: a\r\n b\r\n",
        b"x: a\r\n\tb\r\n", b"host: y\r\n",
    ],
)  # fmt: skip
def test_a_bad_header_is_refused(gateway: GatewayProcess, lines: bytes) -> None:
    (answer,) = answers(gateway, _HEALTH + lines + _END)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


def test_a_request_that_names_no_host_is_refused(gateway: GatewayProcess) -> None:
    (answer,) = answers(gateway, b"GET /health HTTP/1.1\r\n\r\n")
    assert answer.status == 400 and "host" in answer.error["message"]


def test_odd_but_good_heads_are_understood(gateway: GatewayProcess) -> None:
    for head in (
        b"\r\n" + _HEALTH,
        b"GET http://x/health HTTP/1.1\r\nhost: x\r\n",
        b"GET /health?a=%00&b HTTP/1.1\r\nHOST:x\r\n",
        _HEALTH + b"x:\r\nx: \xc3\xa9\xff\r\nx:  a\tb  \r\n",
    ):
        (answer,) = answers(gateway, head + _LAST + _END)
        assert answer.status == 200, head


@pytest.mark.parametrize("target", [b"", b"health", b"/h\xc3\xa9", b"http://[::1/health", b"/a b"])
def test_a_bad_target_is_refused(gateway: GatewayProcess, target: bytes) -> None:
    (answer,) = answers(gateway, b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
    assert answer.status == 400
