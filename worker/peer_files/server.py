"""HTTPS server for contents, with tickets and byte ranges.

The server has its own threads beside the event loop that sends tokens. Most of their work, reading,
encrypting and sending, releases the GIL.
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


class BandwidthLimit:
    """A token bucket with a burst of 0.25 s. Thread-safe.

    Args:
        bytes_per_s: None for no limit.
    """

    _BURST_S = 0.25

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_for(self, count: int) -> None:
        """Block until this many bytes may be sent."""
        if self._bytes_per_s is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(self._free_at, now - self._BURST_S)
            self._free_at = begin + count / self._bytes_per_s
            delay_s = begin - now
        if delay_s > 0:
            time.sleep(delay_s)


logger = logging.getLogger(__name__)

_PIECE_BYTES = 128 * 1024
_IDLE_TIMEOUT_S = 30.0
_HANDSHAKE_TIMEOUT_S = 10.0
_MAX_CONNECTIONS = 16
_TICKET_TTL_S = 3600.0
_MAX_TICKETS = 256
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


@dataclass(slots=True)
class _Ticket:
    contents: Mapping[str, Path]
    used_at: float


class FileServer:
    """Serves contents to clients with a ticket. Listens from its construction until `close`.

    Attributes:
        authority: the certificate, as PEM, that clients must trust.
        sent_bytes: bytes of contents, including those that are being written.
    """

    def __init__(self, host: str, port: int, *, bytes_per_s: float | None) -> None:
        """
        Raises:
            SettingsError: the server cannot listen on this address.
        """
        self.sent_bytes = 0
        self._limit = BandwidthLimit(bytes_per_s)
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
        """Stop listening, and close all connections."""
        self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()

    def new_ticket(self, contents: Mapping[str, Path]) -> str:
        """Create a ticket for contents, given by id. The least recently used of too many tickets is
        revoked."""
        ticket = secrets.token_urlsafe(32)
        with self._lock:
            now = time.monotonic()
            ttl_s = _TICKET_TTL_S
            for expired in [t for t, each in self._tickets.items() if now > each.used_at + ttl_s]:
                del self._tickets[expired]
            while len(self._tickets) >= _MAX_TICKETS:
                del self._tickets[min(self._tickets, key=lambda t: self._tickets[t].used_at)]
            self._tickets[ticket] = _Ticket(dict(contents), now)
        return ticket

    def path(self, ticket: str, content: str) -> Path | None:
        """Return the path of a content; None if the ticket is not valid for it."""
        with self._lock:
            found = self._tickets.get(ticket)
            now = time.monotonic()
            if found is None or now > found.used_at + _TICKET_TTL_S:
                return None
            found.used_at = now
            return found.contents.get(content)

    def reserve(self, count: int) -> None:
        """Wait until the rate limit allows `count` bytes, and add them to `sent_bytes`. The caller
        writes them afterwards, so all bytes that a client has received are counted."""
        self._limit.wait_for(count)
        with self._lock:
            self.sent_bytes += count


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:  # mode 0700; ssl loads certificates from files
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
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._open: set[socket.socket] = set()

    def server_bind(self) -> None:
        """Bind without HTTPServer's lookup of the machine's name, which may take seconds and is not
        needed."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST_NAME, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread, TLS handshake included."""
        try:
            request.settimeout(_HANDSHAKE_TIMEOUT_S)
            with self.tls.wrap_socket(request, server_side=True) as encrypted:
                self._open.add(encrypted)
                try:
                    super().finish_request(encrypted, client_address)
                finally:
                    self._open.discard(encrypted)
        finally:
            self._slots.release()

    def close_connections(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client has closed it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level: clients that do not speak TLS, or disconnect, are no errors."""
        logger.debug("a connection for files from %s ended early", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_TIMEOUT_S
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
        requested = _RANGE.fullmatch(self.headers.get("Range", "bytes=0-"))
        begin = int(requested[1]) if requested else 0
        end = min(size, int(requested[2]) + 1) if requested and requested[2] else size
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
        if rest:  # the file was truncated meanwhile
            self.close_connection = True
