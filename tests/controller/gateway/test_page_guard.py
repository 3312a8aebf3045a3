"""A gateway without keys, and web pages: DNS rebinding and requests of other sites are refused,
programs are not."""

import http.client
import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from controller.gateway.page_guard import PageGuard
from shared.errors import ClusterError
from shared.settings.gateway import GatewaySettings
from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.long_answers import CHAT, QUESTION
from tests.controller.gateway.raw_http import answers
from tests.processes import ClusterProcess

_PAGE = "https://page.example"
_SETTINGS = GatewaySettings(host="mlx.example.com", hosts=["LLM.example.com"], cors_origins=[_PAGE])
_BODY = json.dumps(QUESTION | {"max_tokens": 2}).encode()


def _refusal(method: str = "POST", **headers: str) -> str:
    """Why a request is refused; empty if it is not."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        PageGuard(_SETTINGS).check(method, named)
    except ClusterError as error:
        assert error.code == "not_allowed" and "keys" in error.message
        return error.message
    return ""


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8000", "127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:8000", "192.168.1.5",
        "[2001:db8::5]:80", "gateway", "gateway:8000", "x", "mac-studio.local:8000",
        "host.docker.internal:8000", "host.containers.internal", "app.localhost:3000",
        "nas.home.arpa", "mlx.example.com", "MLX.example.com:8000", "llm.example.com.", "",
        socket.gethostname(),
    ],
)  # fmt: skip
def test_names_that_no_page_can_have_are_known(host: str) -> None:
    assert not _refusal("GET", host=host)
    assert not _refusal("POST", host=host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example",
        "127.0.0.1:8000@evil.example", "evil.example/127.0.0.1", "local.evil.example", "[", "[::1",
        "evil.local.example", "x.mlx.example.com", ".", "..", "127.0.0.1.", "1.2.3.4.5", ":8000",
    ],
)  # fmt: skip
def test_other_names_are_refused_with_the_setting_that_allows_them(host: str) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE"):
        assert "gateway.hosts" in _refusal(method, host=host)


def test_without_a_host_it_is_no_browser() -> None:
    assert not _refusal()


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:8000", "https://127.0.0.1:8000", _PAGE, "chrome-extension://abc",
     "app://obsidian.md", "tauri://localhost", "vscode-webview://abc"],
)  # fmt: skip
def test_the_page_itself_named_origins_and_programs_may_call(origin: str) -> None:
    for method in ("GET", "POST"):
        assert not _refusal(method, host="127.0.0.1:8000", origin=origin)
        assert not _refusal(
            method, host="127.0.0.1:8000", origin=origin, sec_fetch_site="cross-site"
        )


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://127.0.0.1", "http://127.0.0.1:8001",
     "http://localhost:8000", "https://page.example.evil", "http://", "://x", "evil.example"],
)  # fmt: skip
def test_pages_of_others_may_not(origin: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert "gateway.cors_origins" in _refusal(method, host="127.0.0.1:8000", origin=origin)


def test_an_empty_host_is_no_origin() -> None:
    assert _refusal(host="", origin="http://") and _refusal(origin="http://")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_what_another_site_makes_a_browser_send_is_refused_but_following_a_link_is_not(
    site: str,
) -> None:
    assert _refusal("POST", host="localhost", sec_fetch_site=site)
    assert _refusal("DELETE", host="localhost", sec_fetch_site=site)
    assert not _refusal("GET", host="localhost", sec_fetch_site=site)
    assert not _refusal("POST", host="localhost", sec_fetch_site="same-origin")


def test_all_origins_may_call_if_the_setting_says_so() -> None:
    guard = PageGuard(GatewaySettings(cors_origins=["*"]))
    guard.check("POST", {"host": "localhost", "origin": "http://evil.example"})
    with pytest.raises(ClusterError):
        guard.check("POST", {"host": "evil.example", "origin": "http://evil.example"})


# Over HTTP.


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/ui"),
     ("GET", "/"), ("POST", CHAT), ("POST", "/v1/messages"), ("GET", "/v1/responses/resp_x"),
     ("DELETE", "/v1/responses/resp_x"), ("GET", "/cluster/events"), ("POST", "/cluster/orders")],
)  # fmt: skip
def test_a_rebound_name_reads_nothing(gateway: GatewayProcess, method: str, path: str) -> None:
    answer = httpx.request(
        method, gateway.url + path, headers={"host": "evil.example:8000"}, content=b"{}"
    )
    assert answer.status_code == 403 and "gateway.hosts" in answer.json()["error"]["message"]


def test_health_is_told_to_everybody(gateway: GatewayProcess) -> None:
    for path in ("/health", "/ready"):
        headers = {"host": "evil.example", "origin": "http://evil.example"}
        assert httpx.get(gateway.url + path, headers=headers).status_code == 200


def test_a_page_of_another_site_does_not_make_the_model_work(gateway: GatewayProcess) -> None:
    """A browser asks nobody before it sends these."""
    host = f"host: 127.0.0.1:{gateway.port}\r\n"
    for kind in ("", "content-type: text/plain\r\n"):
        for page in ("origin: http://evil.example\r\n", "origin: null\r\n",
                     "sec-fetch-site: cross-site\r\n"):  # fmt: skip
            head = f"POST {CHAT} HTTP/1.1\r\n{host}{kind}{page}content-length: {len(_BODY)}\r\n"
            (answer,) = answers(gateway, head.encode() + b"connection: close\r\n\r\n" + _BODY)
            assert answer.status == 403, head


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/json"},
        {"content-type": "application/json; charset=utf-8", "user-agent": "OpenAI/Python"},
        {"content-type": "application/json", "host": "host.docker.internal:8000"},
    ],
)
def test_programs_are_served_as_ever(gateway: GatewayProcess, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.request("POST", CHAT, body=_BODY, headers=headers)
    assert connection.getresponse().status == 200
    connection.close()


@pytest.fixture(scope="module")
def anonymous(tiny_cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    arguments = ("--host", "0.0.0.0", "--allow-anonymous")
    with gateway_process(tiny_cluster.url, *arguments) as process:
        yield process


def _status(gateway: GatewayProcess, path: str, **headers: str) -> int:
    url = f"http://127.0.0.1:{gateway.port}{path}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.get(url, headers=named).status_code


def test_metrics_of_an_open_gateway_are_for_this_machine(anonymous: GatewayProcess) -> None:
    assert _status(anonymous, "/metrics") == 200
    assert _status(anonymous, "/metrics", host="host.docker.internal:9090") == 200
    assert _status(anonymous, "/metrics", x_forwarded_for="10.0.0.1") == 403
    assert _status(anonymous, "/v1/models", x_forwarded_for="10.0.0.1") == 200
    own = _own_address()
    if own is not None:
        assert httpx.get(f"http://{own}:{anonymous.port}/metrics").status_code == 403
        assert httpx.get(f"http://{own}:{anonymous.port}/v1/models").status_code == 200


def _own_address() -> str | None:
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


def test_a_setting_opens_the_metrics(tiny_cluster: ClusterProcess) -> None:
    settings = {"CLUSTER__GATEWAY__ANONYMOUS_METRICS": "true"}
    with gateway_process(tiny_cluster.url, settings=settings) as process:
        assert _status(process, "/metrics", x_forwarded_for="10.0.0.1") == 200


def test_a_configured_name_is_served(tiny_cluster: ClusterProcess) -> None:
    settings = {"CLUSTER__GATEWAY__HOSTS": '["llm.example.com"]'}
    with gateway_process(tiny_cluster.url, settings=settings) as process:
        assert _status(process, "/v1/models", host="llm.example.com") == 200
        assert _status(process, "/v1/models", host="evil.example") == 403
