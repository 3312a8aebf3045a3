"""Web pages: none may call unless their origin is named; those that are may, and read errors."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.controller.gateway.long_answers import CHAT, QUESTION
from tests.processes import ClusterProcess

_PAGE = "https://page.example"
_FOREIGN = "https://other.example"
_ALLOW = "access-control-allow-origin"
_HEADERS = "authorization, x-api-key, anthropic-version, content-type, x-stainless-os"
_BODY = QUESTION | {"max_tokens": 4}
_PATHS = [(CHAT, "POST"), ("/v1/messages", "POST"), ("/v1/models", "GET"), ("/health", "GET")]


@pytest.fixture(scope="module")
def keyed(
    tiny_cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, str]]:
    """A gateway that a page may call, and a key."""
    file: Path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    key = make_key(file, "page")
    settings = {"CLUSTER__GATEWAY__CORS_ORIGINS": json.dumps([_PAGE])}
    with gateway_process(tiny_cluster.url, "--keys-file", str(file), settings=settings) as process:
        yield process, key


@pytest.fixture
def page(keyed: tuple[GatewayProcess, str]) -> Iterator[httpx.Client]:
    """A program in the page."""
    process, key = keyed
    headers = {"origin": _PAGE, "authorization": f"Bearer {key}"}
    with httpx.Client(base_url=process.url, headers=headers, timeout=60) as client:
        yield client


def _preflight(client: httpx.Client, path: str, method: str, origin: str) -> httpx.Response:
    """What a browser asks before it lets a page call: without a key."""
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": _HEADERS,
    }
    return httpx.options(client.base_url.join(path), headers=headers)


def test_a_page_on_the_internet_may_call_a_gateway_in_the_private_network(
    page: httpx.Client,
) -> None:
    for origin, status in ((_PAGE, 200), (_FOREIGN, 400)):
        headers = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-private-network": "true",
        }
        answer = httpx.options(page.base_url.join(CHAT), headers=headers)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-private-network"] == "true"
        assert (_ALLOW in answer.headers) == (status == 200)


def _speaks_of_access(answer: httpx.Response) -> bool:
    return any(name.startswith("access-control") for name in answer.headers)


def test_without_the_setting_no_page_may_call(http: httpx.Client) -> None:
    for path, method in _PATHS:
        refused = _preflight(http, path, method, _PAGE)
        assert refused.status_code == 405 and not _speaks_of_access(refused)
    answer = http.post(CHAT, json=_BODY, headers={"origin": _PAGE})
    assert answer.status_code == 403 and not _speaks_of_access(answer)
    assert "gateway.cors_origins" in answer.json()["error"]["message"]


def test_a_browser_is_told_that_the_page_may(page: httpx.Client) -> None:
    for path, method in _PATHS:
        allowed = _preflight(page, path, method, _PAGE)
        assert (allowed.status_code, allowed.headers[_ALLOW]) == (200, _PAGE)
        assert method in allowed.headers["access-control-allow-methods"].split(", ")
        taken = set(allowed.headers["access-control-allow-headers"].lower().split(", "))
        assert taken >= set(_HEADERS.split(", "))


def test_the_page_reads_answers_whole_and_streamed(page: httpx.Client) -> None:
    for body in (_BODY, _BODY | {"stream": True}):
        answer = page.post(CHAT, json=body)
        assert (answer.status_code, answer.headers[_ALLOW]) == (200, _PAGE)
        assert answer.headers["vary"] == "Origin"
    message = page.post("/v1/messages", json=_BODY, headers={"anthropic-version": "2023-06-01"})
    assert (message.status_code, message.headers[_ALLOW]) == (200, _PAGE)


def test_the_page_reads_errors_and_when_to_come_again(page: httpx.Client) -> None:
    answers = [
        page.post(CHAT, json=_BODY | {"temperature": "hot"}),
        page.post(CHAT, json=_BODY, headers={"authorization": "Bearer wrong"}),
        page.post(CHAT, json=_BODY | {"model": "gpt-17"}),
        page.get("/nowhere"),
        page.put(CHAT, json=_BODY),
        page.post(CHAT, content=b"x" * 2_000_001),
    ]
    assert [answer.status_code for answer in answers] == [400, 401, 404, 404, 405, 413]
    for answer in answers:
        assert answer.headers[_ALLOW] == _PAGE
        readable = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "retry-after", "retry-after-ms", "x-should-retry"} <= set(readable)


def test_a_foreign_page_is_told_nothing(page: httpx.Client) -> None:
    for path, method in _PATHS:
        refused = _preflight(page, path, method, _FOREIGN)
        assert refused.status_code == 400 and _ALLOW not in refused.headers
    for body in (_BODY, _BODY | {"stream": True}, _BODY | {"temperature": "hot"}):
        assert _ALLOW not in page.post(CHAT, json=body, headers={"origin": _FOREIGN}).headers


def test_who_is_no_page_is_served_as_ever(keyed: tuple[GatewayProcess, str]) -> None:
    process, key = keyed
    answer = httpx.get(f"{process.url}/v1/models", headers={"x-api-key": key})
    assert answer.status_code == 200 and _ALLOW not in answer.headers
