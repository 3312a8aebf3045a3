"""The span of an HTTP request, from its headers to the end of the response."""

import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.telemetry import Span, SpanStart, Tracer
from shared.telemetry.span import AttributeValue

_STATE = "trace_span"
_FIRST_SERVER_ERROR = 500


@dataclass(slots=True)
class CallerSpan:
    """The span of one request, while it is open.

    Attributes:
        attributes: added while the request is handled.
        error: the error code, if it failed.
    """

    start: SpanStart
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    error: str | None = None

    @property
    def trace_id(self) -> str:
        """Empty if the trace is not sampled."""
        return self.start.trace_id if self.start.sampled else ""


def span_of(scope: Scope) -> CallerSpan | None:
    """Return the span of a request; None if it is not traced."""
    span: CallerSpan | None = scope.get("state", {}).get(_STATE)
    return span


class TracedApp:
    """An ASGI app whose requests are traced. A client's `traceparent` is continued.

    Args:
        path: the route, as the span names it.
    """

    def __init__(self, app: ASGIApp, path: str, tracer: Tracer) -> None:
        self._app = app
        self._path = path
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_at = time.monotonic()
        span = CallerSpan(self._tracer.begin(Headers(scope=scope)))
        scope.setdefault("state", {})[_STATE] = span
        status: int | None = None

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            with self._tracer.as_current(span.start):
                await self._app(scope, receive, send_noting_status)
        finally:
            if span.start.sampled:
                self._end(span, scope, began_at, status)

    def _end(self, span: CallerSpan, scope: Scope, began_at: float, status: int | None) -> None:
        attributes = {
            "http.request.method": scope["method"],
            "http.route": self._path,
            "url.path": scope["path"],
            "mlx.request_id": scope["state"]["request_id"],
            **span.attributes,
        }
        if status is not None:
            attributes["http.response.status_code"] = status
            if status >= _FIRST_SERVER_ERROR:
                span.error = span.error or str(status)
        self._tracer.record(
            [
                Span(
                    f"{scope['method']} {self._path}",
                    span.start.trace_id,
                    span.start.span_id,
                    span.start.parent_id,
                    began_at,
                    time.monotonic(),
                    attributes,
                    kind="server",
                    has_remote_parent=span.start.parent_id is not None,
                    error=span.error,
                    tracestate=span.start.tracestate,
                )
            ]
        )
