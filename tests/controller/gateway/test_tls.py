"""HTTPS: with the certificate that is set, and nothing but it on that port."""

import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import httpx2
import openai
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.long_answers import CHAT, LONG, QUESTION
from tests.processes import SCRIPTS, ClusterProcess

_HANDSHAKE_TIMEOUT_MS = 500
_WRONG_SETTINGS = 2


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(folder / "key.pem")
    for blob in made.cert_chain_pems:
        blob.write_to_path(folder / "cert.pem", append=True)
    return folder


@pytest.fixture(scope="module")
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """What a client trusts."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(scope="module")
def secure(tiny_cluster: ClusterProcess, files: Path) -> Iterator[GatewayProcess]:
    settings = _settings(files / "cert.pem", files / "key.pem") | {
        "CLUSTER__GATEWAY__HEADER_TIMEOUT_MS": str(_HANDSHAKE_TIMEOUT_MS)
    }
    with gateway_process(tiny_cluster.url, settings=settings) as process:
        yield process


@pytest.fixture(autouse=True)
def _still_serves(secure: GatewayProcess, trusting: ssl.SSLContext) -> Iterator[None]:
    yield
    assert httpx.get(f"{secure.url}/health", verify=trusting).status_code == 200


def _settings(certificate: Path, key: Path) -> dict[str, str]:
    return {
        "CLUSTER__GATEWAY__TLS__CERT_FILE": str(certificate),
        "CLUSTER__GATEWAY__TLS__KEY_FILE": str(key),
    }


def test_the_url_says_https(secure: GatewayProcess) -> None:
    assert secure.url == f"https://127.0.0.1:{secure.port}"


def test_the_official_client_is_served_whole_and_streamed(
    secure: GatewayProcess, trusting: ssl.SSLContext
) -> None:
    with openai.OpenAI(
        base_url=f"{secure.url}/v1", api_key="none", http_client=httpx2.Client(verify=trusting)
    ) as client:
        asked = QUESTION | {"max_tokens": 20, "temperature": 0}
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content


def test_who_does_not_know_the_authority_does_not_trust_it(secure: GatewayProcess) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{secure.url}/health", verify=ssl.create_default_context())


def test_who_hangs_up_is_noticed(secure: GatewayProcess, trusting: ssl.SSLContext) -> None:
    url = secure.url + CHAT
    with httpx.stream("POST", url, json=LONG, verify=trusting, timeout=60) as response:
        assert next(response.iter_lines()).startswith("data: ")


def test_plain_http_is_not_answered(secure: GatewayProcess) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https", "http") + "/health")


def test_old_versions_are_refused(secure: GatewayProcess, trusting: ssl.SSLContext) -> None:
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", secure.port), timeout=30) as connection,
        pytest.raises(ssl.SSLError),
    ):
        old.wrap_socket(connection)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_who_does_not_go_on_with_the_handshake_is_let_go(
    secure: GatewayProcess, said: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", secure.port), timeout=30) as connection:
        connection.sendall(said)
        assert connection.recv(100) == b""


def test_who_does_not_go_on_after_the_handshake_is_let_go_too(
    secure: GatewayProcess, trusting: ssl.SSLContext
) -> None:
    with (
        socket.create_connection(("127.0.0.1", secure.port), timeout=30) as connection,
        trusting.wrap_socket(connection, server_hostname="127.0.0.1") as secured,
    ):
        assert secured.recv(10_000).startswith(b"HTTP/1.1 408 ")


# What cannot be used.


@pytest.fixture
def unusable(files: Path, tmp_path: Path) -> Path:
    """A folder with files of which none is a certificate or key that fits."""
    other = trustme.CA().issue_cert("127.0.0.1")
    other.private_key_pem.write_to_path(tmp_path / "other_key.pem")
    (tmp_path / "nonsense.pem").write_text("nonsense")
    (tmp_path / "empty.pem").touch()
    key = load_pem_private_key((files / "key.pem").read_bytes(), None)
    (tmp_path / "locked_key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    (tmp_path / "cert.pem").write_bytes((files / "cert.pem").read_bytes())
    (tmp_path / "key.pem").write_bytes((files / "key.pem").read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("certificate", "key"),
    [
        ("missing.pem", "key.pem"), ("cert.pem", "missing.pem"), ("nonsense.pem", "key.pem"),
        ("cert.pem", "nonsense.pem"), ("empty.pem", "key.pem"), ("cert.pem", "other_key.pem"),
        ("cert.pem", "locked_key.pem"), ("key.pem", "cert.pem"), (".", "key.pem"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_a_clear_error(
    unusable: Path, certificate: str, key: str
) -> None:
    started = subprocess.run(
        [str(SCRIPTS / "gateway"), "--nats", "nats://127.0.0.1:1", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=os.environ | _settings(unusable / certificate, unusable / key),
    )
    assert started.returncode == _WRONG_SETTINGS, started.stderr
    assert "gateway.tls: the certificate or key cannot be used" in started.stderr
