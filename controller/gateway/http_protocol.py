"""The HTTP protocol with bounds on what comes before a request is understood.

uvicorn's own waits for ever for the end of a request's head, takes any number of headers, writes
an error into the middle of an answer that is on its way, loses the body of a request that offers
to speak another protocol, as Java's client does, and tells only the last of several requests that
their caller has gone.
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

from controller.gateway.openai.errors import OpenAiDialect
from shared.errors import ClusterError
from shared.ids import new_request_id

_MAX_HEADERS = 100
_LINGER_S = 1.0


class BoundedProtocol(HttpToolsProtocol):
    """One connection. The class attributes are set by `bounded_protocol`."""

    max_header_bytes = 32_768
    max_connections = 1024
    header_timeout_s = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_head = True
        self._refused = False
        self._head_timer: TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None
        if len(self.connections) > self.max_connections:
            message = f"the gateway has {self.max_connections} connections, as many as it takes"
            self._refuse(message, "too_many_connections", 503, retry_after_ms=1000)
            return
        self._await_head()

    def eof_received(self) -> None:
        self._caller_has_gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._caller_has_gone()
        super().connection_lost(exc)

    @property
    def blocked(self) -> bool:
        """Whether the caller has not read enough yet, so that sending waits."""
        return self.flow.write_paused

    def abort(self) -> None:
        """Close now; what was not sent yet is lost."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head and self._head_timer is None:
            self._await_head()  # another request on a connection that was kept
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
        if self._refused:  # and the rest of what came with it is still being parsed
            return
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.max_header_bytes or len(self.headers) > _MAX_HEADERS:
            self._refuse_head()
        elif not self._names_one_host():
            self._refuse("a request names one host", "invalid_request", 400)
        elif not self.parser.should_upgrade():
            super().on_headers_complete()  # raises where the target is none
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
        self._refuse("this is no HTTP request", "invalid_request", 400)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _caller_has_gone(self) -> None:
        self.pipeline.clear()
        if self._answered is not None:
            _disconnect(self._answered)

    def _feed(self, data: bytes) -> None:
        """Have it parsed. Offers to speak another protocol are passed over: the parser stops at
        them, so it gets the same head again without."""
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as offer:
                    if self._refused or self.parser.get_method() == b"CONNECT":
                        raise httptools.HttpParserError from None
                    rest = rest[offer.args[0] :]
                    self.parser.feed_data(self._head_without_offer())
        except httptools.HttpParserError:
            self.send_400_response("")

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"\r\n"])

    def _names_one_host(self) -> bool:
        """As HTTP asks for: nobody shall take a request for another one than we do."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        return hosts == 1 or (hosts == 0 and self.parser.get_http_version() != "1.1")

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.header_timeout_s, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        message = f"the request's head did not come within {self.header_timeout_s:g} s"
        self._refuse(message, "request_timeout", 408)

    def _refuse_head(self) -> None:
        message = f"a request's head has at most {self.max_header_bytes} bytes and {_MAX_HEADERS} "
        self._refuse(message + "headers", "headers_too_large", 431)

    def _refuse(
        self, message: str, code: str, status: int, *, retry_after_ms: int | None = None
    ) -> None:
        """Take no more on this connection. The error is said where it is the caller's turn to
        hear of this request: not while earlier ones are answered, or when its own answer has
        begun. What was asked before is answered; then the connection is closed."""
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        if self._in_head:
            streaming_answer = self.cycle is not None and not self.cycle.response_complete
        elif self.pipeline:
            self.pipeline.popleft()
            streaming_answer = True
        elif self.cycle.response_started:
            streaming_answer = False
            self.transport.close()
        else:
            streaming_answer = False
            _disconnect(self.cycle)
        if not streaming_answer and not self.transport.is_closing():
            self._say(ClusterError(message, code=code, retry_after_ms=retry_after_ms), status)

    def _say(self, error: ClusterError, status: int) -> None:
        """Without the app, and close. What is still coming in is thrown away for a while: to
        close at once would take the answer back."""
        self.connections.discard(self)
        request_id = new_request_id()
        refusal = OpenAiDialect().refusal(error, request_id)
        body = orjson.dumps(refusal.body)
        headers = refusal.headers | {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-request-id": request_id,
            "connection": "close",
        }
        lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Have the app hear no more, and nothing heard of it."""
    cycle.disconnected = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()


def bounded_protocol(**bounds: Any) -> type[BoundedProtocol]:
    """The protocol with these values of its class attributes."""
    return type("GatewayProtocol", (BoundedProtocol,), bounds)
