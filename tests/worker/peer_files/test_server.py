"""What a worker's files are given for: the right ticket, over TLS, from any byte on."""

import hashlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.messages.files import FilesOffer
from tests.worker.peer_files.offering import Offering
from worker.peer_files.peer import PeerDownloadFailed, RemoteFilePeer
from worker.peer_files.server import BandwidthLimit, FileServer

CONTENT = bytes(range(256)) * 5000
ID = hashlib.sha256(CONTENT).hexdigest()
OTHER = "0" * 64
REPO = "owner/model"


@pytest.fixture
def offering(tmp_path: Path) -> Iterator[Offering]:
    blobs = tmp_path / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ID).write_bytes(CONTENT)
    (tmp_path / "secret").write_text("not for others")
    with Offering(tmp_path) as offering:
        yield offering


def read(offer: FilesOffer, begin: int = 0, size: int = len(CONTENT), content: str = ID) -> bytes:
    return b"".join(RemoteFilePeer(offer).read(content, begin, size))


def changed(offer: FilesOffer, **fields: object) -> FilesOffer:
    return offer.model_copy(update=fields)


@pytest.mark.parametrize("begin", [0, 1, 255, len(CONTENT) - 1])
def test_the_rest_from_any_byte_on(offering: Offering, begin: int) -> None:
    assert read(offering.offer(REPO, None), begin) == CONTENT[begin:]
    assert offering.server.sent_bytes == len(CONTENT) - begin, "nothing else passes the wire"


@pytest.mark.parametrize("ticket", ["", "wrong", "x" * 5000])
def test_without_the_ticket_nothing(offering: Offering, ticket: str) -> None:
    with pytest.raises(PeerDownloadFailed, match="404"):
        read(changed(offering.offer(REPO, None), ticket=ticket))


def test_a_ticket_is_for_what_was_offered_and_only_for_a_while(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = offering.offer(REPO, None)
    nothing = changed(offer, ticket=offering.server.new_ticket({}))
    with pytest.raises(PeerDownloadFailed, match="404"):
        read(nothing)
    assert read(offer) == CONTENT
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3599)
    assert read(offer) == CONTENT, "each use counts"
    monkeypatch.setattr(time, "monotonic", lambda: now + 3599 + 3601)
    with pytest.raises(PeerDownloadFailed, match="404"):
        read(offer)


def test_many_questions_cost_little(offering: Offering) -> None:
    first = offering.offer(REPO, None)
    for _ in range(1000):
        last = offering.offer(REPO, None)
    assert read(last) == CONTENT
    with pytest.raises(PeerDownloadFailed, match="404"):
        read(first)


@pytest.mark.parametrize(
    "path", [OTHER, "../secret", "..%2fsecret", "/etc/passwd", ID[:-1], "", "?" * 3000]
)
def test_no_other_file(offering: Offering, path: str) -> None:
    with pytest.raises(PeerDownloadFailed, match=r"40[04]|414"):
        read(offering.offer(REPO, None), content=path)


def test_another_length_than_offered_is_refused(offering: Offering) -> None:
    with pytest.raises(PeerDownloadFailed, match="another range of bytes"):
        read(offering.offer(REPO, None), 0, len(CONTENT) + 1)
    with pytest.raises(PeerDownloadFailed, match="416"):
        read(offering.offer(REPO, None), len(CONTENT), len(CONTENT))


def test_who_has_another_certificate_is_not_who_was_meant(
    offering: Offering, tmp_path: Path
) -> None:
    with Offering(tmp_path) as impostor:
        offer = changed(offering.offer(REPO, None), authority=impostor.server.authority)
        with pytest.raises(PeerDownloadFailed, match="CERTIFICATE_VERIFY_FAILED"):
            read(offer)


def test_the_address_that_answers_is_taken(offering: Offering) -> None:
    offer = offering.offer(REPO, None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # refuses, as nobody listens
        port = taken.getsockname()[1]
        urls = [f"https://127.0.0.1:{port}", "https://[::1]:1", *offer.urls]
        assert read(changed(offer, urls=urls)) == CONTENT
        with pytest.raises(PeerDownloadFailed, match="Refused"):
            read(changed(offer, urls=urls[:1]))


def test_an_address_that_lets_us_wait_is_tried_once(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = offering.offer(REPO, None)
    tried: list[str] = []
    connect = http.client.HTTPConnection.connect

    def waits(connection: http.client.HTTPConnection) -> None:
        tried.append(connection.host)
        if connection.host == "192.0.2.1":
            raise TimeoutError("timed out")
        connect(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", waits)
    peer = RemoteFilePeer(changed(offer, urls=["https://192.0.2.1:1", *offer.urls]))
    for _ in range(2):
        assert b"".join(peer.read(ID, 0, len(CONTENT))) == CONTENT
    assert tried == ["192.0.2.1", "127.0.0.1", "127.0.0.1"]


def test_the_name_of_this_machine_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac that may take longer than people wait for a token."""

    def looked_up(name: str = "") -> str:
        raise AssertionError("looked up")

    monkeypatch.setattr(socket, "getfqdn", looked_up)
    FileServer("127.0.0.1", 0, bytes_per_s=None).close()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("bytes=0-9", 206),
        ("bytes=0-", 206),
        ("bytes=9-0", 416),
        ("bytes=99999999999-", 416),
        ("bytes=-5", 206),
        ("bytes=a-b", 206),
        ("lines=1-2", 206),
        ("bytes=" + "9" * 400 + "-", 206),
    ],
)
def test_ranges_as_they_may_come(offering: Offering, header: str, status: int) -> None:
    offer = offering.offer(REPO, None)
    context = ssl.create_default_context(cadata=offer.authority)
    context.check_hostname = False
    connection = http.client.HTTPSConnection(
        "127.0.0.1", offering.server.port, context=context, timeout=10
    )
    bearer = {"Authorization": f"Bearer {offer.ticket}"}
    for _ in range(2):  # also a second time, on the same connection
        connection.request("GET", f"/{ID}", headers=bearer | {"Range": header})
        answer = connection.getresponse()
        assert answer.status == status
        body = answer.read()
        assert len(body) == int(answer.headers["Content-Length"])
    connection.close()


def test_what_is_no_tls_disturbs_nobody(offering: Offering) -> None:
    with socket.create_connection(("127.0.0.1", offering.server.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        assert read(offering.offer(REPO, None)) == CONTENT


def test_who_takes_all_places_does_not_end_it(offering: Offering) -> None:
    held = [socket.create_connection(("127.0.0.1", offering.server.port)) for _ in range(40)]
    with pytest.raises(PeerDownloadFailed):
        read(offering.offer(REPO, None))
    for each in held:
        each.close()
    for _ in range(100):
        try:
            assert read(offering.offer(REPO, None)) == CONTENT
            return
        except PeerDownloadFailed:
            time.sleep(0.05)
    raise AssertionError("no place became free")


def test_a_port_that_is_taken_is_said(offering: Offering) -> None:
    with pytest.raises(SettingsError, match=r"worker\.peer_files: 127\.0\.0\.1"):
        FileServer("127.0.0.1", offering.server.port, bytes_per_s=None)


def test_the_limit_is_kept_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    limit = BandwidthLimit(1_000_000)
    for _ in range(100):
        limit.wait_for(100_000)
    assert 9.5 < now - 100 < 10.1, "10 MB at 1 MB/s, but for the first quarter of a second"
    free = BandwidthLimit(None)
    before = now
    free.wait_for(10**12)
    assert now == before
