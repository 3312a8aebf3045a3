"""uvicorn's HTTP protocol with limits, and with corrections.

uvicorn's own protocol has a timeout for idle connections only, which any byte ends; it accepts any
number of headers, of trailers and of pipelined requests, writes an error into the middle of a
response in progress, loses the body of a request with an `Upgrade` header (Java's client sends
one), and reports a closed connection only to the last of several pipelined requests.

The deadlines are those of `connection_deadlines`: callbacks note what changed in the connection's
state, and `_watch` sees to it that the connection is looked at when its deadline has come.
"""

import asyncio
import math
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

from controller.gateway.connection_deadlines import (
    ConnectionState,
    ConnectionTimeouts,
    Phase,
    deadline,
)
from controller.gateway.connection_table import ConnectionTable
from controller.gateway.openai.errors import OpenAiErrorFormat
from shared.errors import ClusterError
from shared.ids import new_request_id

_MAX_HEADERS = 100
_MAX_PIPELINED = 100
_CLOSE_DELAY_S = 1.0
_LEAST_READ_BYTES = 65_536
"""A client that reads less than this within the send timeout is taken for one that reads
nothing."""
_FRAMING_PER_BYTE = 8
_MAX_FRAMED_BYTES = 262_144
"""For each byte of a body, up to so many, there may be so many bytes of chunk sizes, extensions and
trailers: a body in chunks of one byte has 5."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `bounded_protocol` sets the class attributes."""

    max_header_bytes = 32_768
    timeouts = ConnectionTimeouts()
    table: ConnectionTable

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        now = self.loop.time()
        self._state = ConnectionState(idle_since=now, head_since=now)
        self._timer: TimerHandle | None = None
        self._wakes_at = math.inf
        self._unsent_bytes = 0  # when the connection became blocked, or began to close
        self._head_bytes = 0
        self._body_bytes = 0
        self._framing_bytes = 0  # of chunks and trailers
        self._in_head = True
        self._refused = False
        self._is_over = False  # lost, or aborted
        self._active_cycle: RequestResponseCycle | None = None
        problem = self.table.admit(self, self.client[0] if self.client is not None else "")
        if problem is None:
            self._watch()
        elif self.table.refuse(self):
            self._refuse(problem, "too_many_connections", 503, retry_after_ms=1000)
        else:
            self.abort()

    def eof_received(self) -> None:
        self._client_disconnected()
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._client_disconnected()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._state.blocked_since = self.loop.time()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._state.blocked_since = None
        self._watch()

    @property
    def _max_framing_bytes(self) -> int:
        return self.max_header_bytes + _FRAMING_PER_BYTE * min(self._body_bytes, _MAX_FRAMED_BYTES)

    @property
    def blocked(self) -> bool:
        """Whether writes wait until the caller has read more."""
        return self.flow.write_paused

    def abort(self) -> None:
        """Close the connection now and drop what has not been sent."""
        self._end()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            if self._state.head_since is None:
                self._state.head_since = self.loop.time()
            self._head_bytes += len(data)
        else:
            self._framing_bytes += len(data)
        self._feed(data)
        if self._in_head:
            if self._head_bytes > self.max_header_bytes:
                self._refuse_head()
        elif self._framing_bytes > self._max_framing_bytes:
            self._refuse("the body is mostly sizes of chunks", "invalid_request", 400)
        self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are not kept
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._refused:  # the parser still processes the rest of the data
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.max_header_bytes or len(self.headers) > _MAX_HEADERS:
            self._refuse_head()
        elif not self._has_one_host():
            self._refuse("a request needs exactly one host header", "invalid_request", 400)
        elif len(self.pipeline) >= _MAX_PIPELINED:
            self._refuse("too many requests before an answer", "invalid_request", 400)
        elif not self.parser.should_upgrade():
            super().on_headers_complete()  # raises if the target is not a valid one
            self._in_head, self._head_bytes, self._state.head_since = False, 0, None
            self._body_bytes = self._framing_bytes = 0

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            self._body_bytes += len(body)
            self._framing_bytes -= len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._in_head and not self._refused:
            super().on_message_complete()
            self._state.body_since = None
        self._in_head, self._head_bytes = True, 0

    def on_response_complete(self) -> None:
        """Start the next pipelined request, or wait for one. Without uvicorn's own timer."""
        self.server_state.total_requests += 1
        now = self.loop.time()
        self._state.responding, self._state.idle_since = False, now
        if self._state.head_since is not None:  # came during the answer
            self._state.head_since = now
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            elif self._refused:
                self.transport.close()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        self._refuse("not a valid HTTP request", "invalid_request", 400)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active_cycle = cycle
        self._state.responding = True
        self._state.body_since = self.loop.time() if cycle.more_body else None
        super()._start_asgi_task(cycle, app)

    def _client_disconnected(self) -> None:
        self.pipeline.clear()
        if self._active_cycle is not None:
            _disconnect(self._active_cycle)

    # Deadlines.

    def _watch(self) -> None:
        """Look at the connection again when its deadline has come. To be called after each change
        of the state. A timer that ends too early stays: that is cheaper than a new one."""
        if self._is_over:
            return
        if self._state.closing_since is None and self.transport.is_closing():
            self._closes()
        phase, ends_at = deadline(self._state, self.timeouts)
        self.table.set_waiting(self, phase is not Phase.ANSWER)
        if ends_at < self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(ends_at, self._wake)
            self._wakes_at = ends_at

    def _wake(self) -> None:
        self._timer, self._wakes_at = None, math.inf
        phase, ends_at = deadline(self._state, self.timeouts)
        if ends_at <= self.loop.time():
            self._time_out(phase)
        self._watch()

    def _time_out(self, phase: Phase) -> None:
        match phase:
            case Phase.HEAD:
                message = f"no complete request head within {self.timeouts.head_s:g} s"
                self._refuse(message, "request_timeout", 408)
            case Phase.BODY if not self._state.responding:
                self._close()
            case Phase.BODY:
                message = f"no complete body within {self.timeouts.body_s:g} s"
                self._refuse(message, "request_timeout", 408)
            case Phase.BLOCKED | Phase.CLOSING:
                self._abort_if_stalled()
            case Phase.IDLE:
                self._close()

    def _abort_if_stalled(self) -> None:
        """Abort unless the client has read enough of what was unsent at the last look."""
        unsent = self.transport.get_write_buffer_size()
        if self._unsent_bytes - unsent < _LEAST_READ_BYTES:
            self.abort()
            return
        self._unsent_bytes = unsent
        if self._state.closing_since is not None:
            self._state.closing_since = self.loop.time()
        else:
            self._state.blocked_since = self.loop.time()

    def _close(self) -> None:
        """Close the connection once the client has read what is unsent."""
        self.transport.close()
        self._watch()

    def _end(self) -> None:
        self._is_over = True
        self.table.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def _closes(self) -> None:
        self._state.closing_since = self.loop.time()
        self._unsent_bytes = self.transport.get_write_buffer_size()

    # Parsing.

    def _feed(self, data: bytes) -> None:
        """Parse the data. `Upgrade` headers are ignored: the parser stops at them, so another one
        is given the same head without them."""
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
                    head = self._head_without_upgrade()
                    # The old one takes nothing more if the head has `Connection: close`.
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                    self.parser.feed_data(head)
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
        self._state.head_since = self._state.body_since = None
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
        self._state.responding = False
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
        self._closes()
        self._watch()
        self.loop.call_later(_CLOSE_DELAY_S, self.transport.close)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Make the app receive a disconnect, and drop what the app sends."""
    cycle.disconnected = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()


def bounded_protocol(**bounds: Any) -> type[BoundedProtocol]:
    """Return a protocol class with these values of its class attributes."""
    return type("GatewayProtocol", (BoundedProtocol,), bounds)
