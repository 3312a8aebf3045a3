"""Gives contents to who has a ticket for them: HTTPS, with ranges.

It runs in threads of its own beside the loop that sends tokens: what they do most, reading,
encrypting and sending, needs no interpreter.
"""

import logging
import re
import secrets
import socket
import socketserver
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from shared.access.certificates import new_authority, new_server
from shared.errors import SettingsError
from worker.peer_files.peer import HOST_NAME
from worker.peer_files.rate_limit import RateLimit

logger = logging.getLogger(__name__)

_PIECE_BYTES = 128 * 1024
_SILENCE_S = 30.0
_HANDSHAKE_S = 10.0
_MOST_CONNECTIONS = 16
_TICKET_S = 3600.0
_MOST_TICKETS = 256
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


@dataclass(slots=True)
class _Ticket:
    contents: Mapping[str, Path]
    used_at: float


class FileServer:
    """Listens from the begin on. `close` it.

    Attributes:
        authority: the certificate, as PEM, that those who fetch have to trust.
        sent_bytes: of file contents, including bytes that are being written.
    """

    def __init__(self, host: str, port: int, *, bytes_per_s: float | None) -> None:
        """
        Raises:
            SettingsError: nobody can listen there.
        """
        self.sent_bytes = 0
        self._limit = RateLimit(bytes_per_s)
        self._tickets: dict[str, _Ticket] = {}
        self._lock = threading.Lock()
        authority = new_authority("files of a worker")
        self.authority = authority.certificate.decode()
        identity = new_server(authority, [HOST_NAME])
        try:
            self._server = _Server((host, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"worker.peer_files: {host}:{port}: {error.strerror}", param="worker.peer_files"
            ) from None
        self._server.files = self
        self._server.tls = _context(identity.certificate, identity.key)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        """Those who fetch notice that the connection ends."""
        self._server.shutdown()
        self._server.server_close()
        self._server.end_all()

    def new_ticket(self, contents: Mapping[str, Path]) -> str:
        """For these contents, by id."""
        ticket = secrets.token_urlsafe(32)
        with self._lock:
            now = time.monotonic()
            for known in [t for t, each in self._tickets.items() if now > each.used_at + _TICKET_S]:
                del self._tickets[known]
            while len(self._tickets) >= _MOST_TICKETS:
                del self._tickets[min(self._tickets, key=lambda t: self._tickets[t].used_at)]
            self._tickets[ticket] = _Ticket(dict(contents), now)
        return ticket

    def path(self, ticket: str, content: str) -> Path | None:
        """Of a content, for who has the ticket; None for others."""
        with self._lock:
            known = self._tickets.get(ticket)
            now = time.monotonic()
            if known is None or now > known.used_at + _TICKET_S:
                return None
            known.used_at = now
            return known.contents.get(content)

    def reserve(self, count: int) -> None:
        """Wait until the rate limit allows `count` bytes, then count them as sent. The caller
        writes them afterwards, so a client that has read everything finds all of it counted."""
        self._limit.wait_for(count)
        with self._lock:
            self.sent_bytes += count


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:  # 0700; ssl takes files only
        file = Path(folder) / "identity.pem"
        file.write_bytes(certificate + key)
        context.load_cert_chain(file)
    return context


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    files: FileServer
    tls: ssl.SSLContext

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()

    def server_bind(self) -> None:
        """Without looking up the name of this machine, as HTTPServer does: that may take seconds,
        and nobody asks for it."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST_NAME, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In a thread of the connection's own, the handshake too."""
        try:
            request.settimeout(_HANDSHAKE_S)
            with self.tls.wrap_socket(request, server_side=True) as encrypted:
                self._open.add(encrypted)
                try:
                    super().finish_request(encrypted, client_address)
                finally:
                    self._open.discard(encrypted)
        finally:
            self._places.release()

    def end_all(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who connects and speaks no TLS, or goes away, is worth no traceback."""
        logger.debug("a connection for files from %s ended early", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("files: %s", self.requestline[:200] if hasattr(self, "requestline") else "")

    def version_string(self) -> str:
        return HOST_NAME

    def do_GET(self) -> None:
        kind, _, ticket = self.headers.get("Authorization", "").partition(" ")
        path = self.server.files.path(ticket, self.path[1:]) if kind == "Bearer" else None
        try:
            file = path.open("rb") if path is not None else None
        except OSError:
            file = None
        if file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            size = file.seek(0, 2)
            self._send(file, size)

    def _send(self, file: Any, size: int) -> None:
        asked = _RANGE.fullmatch(self.headers.get("Range", "bytes=0-"))
        begin = int(asked[1]) if asked else 0
        end = min(size, int(asked[2]) + 1) if asked and asked[2] else size
        if begin >= end and size:
            self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(HTTPStatus.PARTIAL_CONTENT if size else HTTPStatus.OK)
        if size:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        file.seek(begin)
        rest = end - begin
        while rest and (piece := file.read(min(_PIECE_BYTES, rest))):
            self.server.files.reserve(len(piece))
            self.wfile.write(piece)
            rest -= len(piece)
        if rest:  # somebody made the file shorter
            self.close_connection = True
