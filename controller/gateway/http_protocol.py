"""The HTTP protocol with bounds on what comes before a request is understood.

uvicorn's own waits for ever for the end of a request's head, and takes any number of headers.
"""

import asyncio
from asyncio import TimerHandle
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

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
        if len(self.connections) > self.max_connections:
            message = f"the gateway has {self.max_connections} connections, as many as it takes"
            self._refuse(message, "too_many_connections", 503, retry_after_ms=1000)
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
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
        super().data_received(data)
        if self._in_head and self._head_bytes > self.max_header_bytes:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.max_header_bytes or len(self.headers) > _MAX_HEADERS:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse("this is no HTTP request", "invalid_request", 400)

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
        """Say an error and close, without the app. What is still coming in is thrown away for
        a while: to close at once would take the answer back."""
        self._refused = True
        self._stop_timer()
        self.connections.discard(self)
        if self.transport.is_closing():
            return
        error = ClusterError(message, code=code, retry_after_ms=retry_after_ms)
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


def bounded_protocol(**bounds: Any) -> type[BoundedProtocol]:
    """The protocol with these values of its class attributes."""
    return type("GatewayProtocol", (BoundedProtocol,), bounds)
