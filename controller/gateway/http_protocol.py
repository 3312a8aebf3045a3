"""uvicorn's HTTP protocol with limits, and with corrections.

uvicorn's own protocol waits for the end of a request's head without a timeout, accepts any number
of headers, writes an error into the middle of a response in progress, loses the body of a request
with an `Upgrade` header (Java's client sends one), and reports a closed connection only to the
last of several pipelined requests.
"""

import asyncio
from asyncio import TimerHandle
from typing import Any

import httptools
import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from controller.gateway.openai.errors import OpenAiErrorFormat
from shared.errors import ClusterError
from shared.ids import new_request_id

_MAX_HEADERS = 100
_CLOSE_DELAY_S = 1.0


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `bounded_protocol` sets the class attributes."""

    max_header_bytes = 32_768
    max_connections = 1024
    header_timeout_s = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_head = True
        self._refused = False
        self._head_timer: TimerHandle | None = None
        self._active_cycle: RequestResponseCycle | None = None
        if len(self.connections) > self.max_connections:
            message = f"the gateway has {self.max_connections} connections, its limit"
            self._refuse(message, "too_many_connections", 503, retry_after_ms=1000)
            return
        self._start_head_timer()

    def eof_received(self) -> None:
        self._client_disconnected()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._client_disconnected()
        super().connection_lost(exc)

    @property
    def blocked(self) -> bool:
        """Whether writes wait until the caller has read more."""
        return self.flow.write_paused

    def abort(self) -> None:
        """Close the connection now and drop what has not been sent."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head and self._head_timer is None:
            self._start_head_timer()  # another request on a keep-alive connection
        if self._in_head:
            self._head_bytes += len(data)
        self._feed(data)
        if self._in_head and self._head_bytes > self.max_header_bytes:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._in_head = True

    def on_headers_complete(self) -> None:
        if self._refused:  # the parser still processes the rest of the data
            return
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.max_header_bytes or len(self.headers) > _MAX_HEADERS:
            self._refuse_head()
        elif not self._has_one_host():
            self._refuse("a request needs exactly one host header", "invalid_request", 400)
        elif not self.parser.should_upgrade():
            super().on_headers_complete()  # raises if the target is not a valid one
            self._in_head, self._head_bytes = False, 0

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._in_head and not self._refused:
            super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def on_response_complete(self) -> None:
        was_last = not self.pipeline
        super().on_response_complete()
        if self._refused and was_last:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse("not a valid HTTP request", "invalid_request", 400)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def _client_disconnected(self) -> None:
        self.pipeline.clear()
        if self._active_cycle is not None:
            _disconnect(self._active_cycle)

    def _feed(self, data: bytes) -> None:
        """Parse the data. `Upgrade` headers are ignored: the parser stops at them, so it is given
        the same head again without them."""
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    if self._refused or self.parser.get_method() == b"CONNECT":
                        raise httptools.HttpParserError from None
                    rest = rest[upgrade.args[0] :]
                    self.parser.feed_data(self._head_without_upgrade())
        except httptools.HttpParserError:
            self.send_400_response("")

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"\r\n"])

    def _has_one_host(self) -> bool:
        """Whether the request has one `Host` header, as RFC 9112 requires: with several, a proxy
        and the gateway could disagree on the target."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        return hosts == 1 or (hosts == 0 and self.parser.get_http_version() != "1.1")

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.header_timeout_s, self._head_timed_out)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        message = f"no complete request head within {self.header_timeout_s:g} s"
        self._refuse(message, "request_timeout", 408)

    def _refuse_head(self) -> None:
        limits = f"{self.max_header_bytes} bytes and {_MAX_HEADERS} headers"
        self._refuse(f"the request head exceeds {limits}", "headers_too_large", 431)

    def _refuse(
        self, message: str, code: str, status: int, *, retry_after_ms: int | None = None
    ) -> None:
        """Accept no more requests on this connection, and close it after the responses to earlier
        requests. The error is sent unless an earlier request is still being answered, or the
        response to this request has begun."""
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        if self._in_head:
            has_open_response = self.cycle is not None and not self.cycle.response_complete
        elif self.pipeline:
            self.pipeline.popleft()
            has_open_response = True
        elif self.cycle.response_started:
            has_open_response = False
            self.transport.close()
        else:
            has_open_response = False
            _disconnect(self.cycle)
        if not has_open_response and not self.transport.is_closing():
            self._send_error(
                ClusterError(message, code=code, retry_after_ms=retry_after_ms), status
            )

    def _send_error(self, error: ClusterError, status: int) -> None:
        """Send the error without the app, and close the connection 1 s later. Data that arrives
        until then is discarded: an immediate close would reset the connection, and the caller
        would not receive the response."""
        self.connections.discard(self)
        request_id = new_request_id()
        response = OpenAiErrorFormat().http_error(error, request_id)
        body = orjson.dumps(response.body)
        headers = response.headers | {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-request-id": request_id,
            "connection": "close",
        }
        lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_CLOSE_DELAY_S, self.transport.close)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Make the app receive a disconnect, and drop what the app sends."""
    cycle.disconnected = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()


def bounded_protocol(**bounds: Any) -> type[BoundedProtocol]:
    """Return a protocol class with these values of its class attributes."""
    return type("GatewayProtocol", (BoundedProtocol,), bounds)
