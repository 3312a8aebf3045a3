"""Bare sockets in each state of a connection: none keeps it longer than that state's deadline, and
none that waits keeps others out."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from controller.gateway.server import HttpServer
from shared.settings.gateway import GatewaySettings
from tests.processes import wait_until

pytestmark = pytest.mark.anyio

_LIMIT_S = 30
_HOST = b"host: x\r\n"
_GET = b"GET /small HTTP/1.1\r\n" + _HOST + b"\r\n"
_LARGE = b"GET /large HTTP/1.1\r\n" + _HOST + b"\r\n"
_POST = b"POST /small HTTP/1.1\r\n" + _HOST + b"content-length: 1000\r\n\r\n"
_READ = b"POST /read HTTP/1.1\r\n" + _HOST + b"content-length: 1000\r\n\r\n"
_CHUNKED = b"POST /read HTTP/1.1\r\n" + _HOST + b"transfer-encoding: chunked\r\n\r\n"
_WAIT = b"GET /wait HTTP/1.1\r\n" + _HOST + b"\r\n"
_LARGE_BYTES = 3_000_000


class _App:
    """`/small` and `/large` answer without reading the body, `/read` reads it first, and `/wait`
    answers when `released` is set."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.waiting = 0

    async def are_waiting(self, count: int) -> None:
        """Return once so many requests wait."""

        async def reached() -> bool:
            return self.waiting == count

        await wait_until(reached, _LIMIT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b"x" * (_LARGE_BYTES if scope["path"] == "/large" else 1)
        if scope["path"] == "/read":
            while (message := await receive())["type"] == "http.request":
                if not message["more_body"]:
                    break
            else:
                return
        if scope["path"] == "/wait":
            self.waiting += 1
            await self.released.wait()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _Served:
    def __init__(self, app: _App, port: int) -> None:
        self.app, self.port = app, port

    async def connect(
        self, buffer_bytes: int = 4096
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect; hardly anything fits into the socket's own buffer."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=connection, limit=4096)


@contextlib.asynccontextmanager
async def _serving(**settings: Any) -> AsyncIterator[_Served]:
    app = _App()
    short = {"header_timeout_ms": 300, "body_timeout_ms": 300, "send_timeout_ms": 300}
    server = HttpServer(GatewaySettings(port=0, **(short | settings)), app)
    running = asyncio.create_task(server.run())
    try:
        yield _Served(app, int(server.url.rpartition(":")[2]))
    finally:
        app.released.set()
        server.stop(force=True)
        await running


@pytest.fixture(autouse=True)
def _without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_BODY_GRACE_S", 0), ("_SEND_GRACE_S", 0), ("_IDLE_S", 0.5)):
        monkeypatch.setattr(f"controller.gateway.server.{name}", seconds)


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the gateway closes. Fails if it does not."""
    data = b""
    async with asyncio.timeout(_LIMIT_S):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                data += part
    return data


async def _trickle(writer: asyncio.StreamWriter, byte: bytes) -> None:
    """Send one byte after another, much faster than any deadline."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(byte)
            await writer.drain()
            await asyncio.sleep(0.02)


_STATES: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "half a head": (b"GET /small HTT", b""),
    "a head byte by byte": (b"GET /small HTTP/1.1\r\nx: ", b"a"),
    "empty lines before a head": (b"", b"\r\n"),
    "half a body": (_READ + b"x", b""),
    "a body byte by byte": (_READ, b"x"),
    "half a body after the answer": (_POST + b"x", b""),
    "a body after the answer, byte by byte": (_POST, b"x"),
    "chunk by chunk": (_CHUNKED, b"1\r\nx\r\n"),
    "half a chunk size": (_CHUNKED + b"5", b"0"),
    "half a chunk extension": (_CHUNKED + b"5;", b"a"),
    "half a trailer": (_CHUNKED + b"0\r\nx: ", b"a"),
    "nothing after an answer": (_GET, b""),
    "half a head after an answer": (_GET + b"GET /sm", b""),
    "a head byte by byte after an answer": (_GET + b"GET /small", b"x"),
    "an error": (b"NONSENSE\r\n\r\n", b"x"),
}


@pytest.mark.parametrize(("sent", "trickled"), _STATES.values(), ids=list(_STATES))
async def test_no_state_outlasts_its_deadline(sent: bytes, trickled: bytes) -> None:
    async with _serving() as served:
        reader, writer = await served.connect()
        writer.write(sent)
        trickling = asyncio.create_task(_trickle(writer, trickled)) if trickled else None
        await _until_closed(reader)
        if trickling is not None:
            trickling.cancel()
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [_LARGE, _LARGE * 20, _LARGE + _WAIT, _LARGE + b"GET", _LARGE + _READ + b"x",
     _LARGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), _LARGE + b"NONSENSE\r\n\r\n"],
    ids=["one", "pipelined", "before one that waits", "before half a head", "before half a body",
         "the last", "before an error"],
)  # fmt: skip
async def test_who_does_not_read_an_answer_is_let_go(sent: bytes) -> None:
    """Reading only at the end tells: what was sent until then is not all."""
    async with _serving() as served:
        served.app.released.set()
        reader, writer = await served.connect()
        writer.write(sent)
        other, other_writer = await served.connect()
        for _ in range(20):  # longer than all deadlines of the first one together
            other_writer.write(_GET)
            await other.readuntil(b"\r\n\r\nx")
            await asyncio.sleep(0.1)
        assert len(await _until_closed(reader)) < _LARGE_BYTES
        writer.close()
        other_writer.close()


async def test_who_reads_slowly_gets_all() -> None:
    async with _serving(send_timeout_ms=1000) as served:
        reader, writer = await served.connect(65_536)
        writer.write(_LARGE)
        received = len(await reader.readuntil(b"\r\n\r\n"))
        body = 0
        async with asyncio.timeout(_LIMIT_S):
            while body < _LARGE_BYTES:
                body += len(await reader.readexactly(min(50_000, _LARGE_BYTES - body)))
                await asyncio.sleep(0.04)
        assert received and body == _LARGE_BYTES
        writer.close()


async def test_who_closes_its_half_is_let_go() -> None:
    for sent in (b"", _GET, _READ + b"x", _WAIT, b"GET /sm"):
        async with _serving() as served:
            reader, writer = await served.connect()
            writer.write(sent)
            writer.write_eof()
            await _until_closed(reader)
            writer.close()


async def test_an_answer_may_take_longer_than_every_deadline() -> None:
    async with _serving() as served:
        reader, writer = await served.connect()
        writer.write(_WAIT + b"GET /sm")
        await served.app.are_waiting(1)
        await asyncio.sleep(1.0)
        served.app.released.set()
        assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
        writer.write(b"all HTTP/1.1\r\n" + _HOST + b"\r\n")
        assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_more_requests_than_a_client_may_send_ahead_end_after_those_answers() -> None:
    async with _serving() as served:
        reader, writer = await served.connect()
        writer.write(_GET * 2000)
        answers = (await _until_closed(reader)).count(b"HTTP/1.1 200")
        assert 50 < answers < 200
        writer.close()


_FRAMING = {
    "an extension": b"1;" + b"a" * 400_000,
    "extensions": b"1;aaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 20_000,
    "a chunk size": b"0" * 400_000,
    "a trailer": b"0\r\nx: " + b"a" * 400_000,
    "trailers": b"0\r\n" + b"x: a\r\n" * 60_000,
}


@pytest.mark.parametrize("body", _FRAMING.values(), ids=list(_FRAMING))
async def test_a_body_that_is_mostly_framing_is_refused(body: bytes) -> None:
    async with _serving(body_timeout_ms=600_000) as served:
        reader, writer = await served.connect()
        writer.write(_CHUNKED + body)
        assert (await _until_closed(reader)).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_connections_that_wait_do_not_lock_others_out() -> None:
    """Whatever they wait for: a head, a body, that an answer is read, another request."""
    patient = {"header_timeout_ms": 600_000, "body_timeout_ms": 600_000, "send_timeout_ms": 600_000}
    async with _serving(max_connections=8, **patient) as served:
        waiting = []
        for sent in (b"", b"GET /sm", _READ, _POST, _GET, _LARGE, _LARGE * 3, _CHUNKED + b"5;"):
            waiting.append(await served.connect())
            waiting[-1][1].write(sent)
        await asyncio.sleep(0.1)
        for _ in range(20):
            reader, writer = await served.connect()
            writer.write(_GET)
            async with asyncio.timeout(_LIMIT_S):
                assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
            waiting.append((reader, writer))
        for _, writer in waiting:
            writer.close()


async def test_connections_that_are_answered_keep_their_places() -> None:
    async with _serving(max_connections=4) as served:
        answered = [await served.connect() for _ in range(4)]
        for _, writer in answered:
            writer.write(_WAIT)
        await served.app.are_waiting(4)
        reader, writer = await served.connect()
        refused = await _until_closed(reader)
        assert refused.startswith(b"HTTP/1.1 503") and b"too_many_connections" in refused
        assert b"retry-after" in refused
        served.app.released.set()
        for reader, _ in answered:
            assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
        for _, each in (*answered, (reader, writer)):
            each.close()


async def test_one_address_has_its_own_limit() -> None:
    async with _serving(max_connections=100, max_connections_per_address=3) as served:
        answered = [await served.connect() for _ in range(3)]
        for _, writer in answered:
            writer.write(_WAIT)
        await served.app.are_waiting(3)
        reader, writer = await served.connect()
        assert b"one address has 3 connections" in await _until_closed(reader)
        for _, each in (*answered, (reader, writer)):
            each.close()
