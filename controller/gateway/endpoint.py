"""Common handling of all HTTP requests: request ids, API keys, and errors in the API's format."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.gateway.anthropic.errors import AnthropicErrorFormat
from controller.gateway.api_keys import ApiKey, ApiKeyRing
from controller.gateway.error_format import ApiErrorFormat, json_headers
from controller.gateway.metrics import GatewayMetrics
from controller.gateway.openai.errors import OpenAiErrorFormat
from controller.gateway.page_guard import PageGuard
from controller.gateway.request_body import HEADER as IGNORED_FIELDS_HEADER
from controller.gateway.traced_app import span_of
from shared.errors import ClusterError
from shared.ids import RequestId, new_request_id

logger = logging.getLogger(__name__)

_DISCARD_TIMEOUT_S = 2.0
_RETRY_AFTER_MS = 1000

Handler = Callable[[Request], Awaitable[ASGIApp]]
"""Returns the response to a request. Raises ClusterError."""


class ShuttingDown(ClusterError):
    """The gateway is shutting down. The request can be retried, also at another gateway."""

    code = "draining"

    def __init__(self) -> None:
        super().__init__("the gateway is shutting down", retry_after_ms=_RETRY_AFTER_MS)


def dialect_of(path: str) -> ApiErrorFormat:
    """Return the dialect of the API that a path belongs to."""
    anthropic = path == "/v1/messages" or path.startswith("/v1/messages/")
    return AnthropicErrorFormat() if anthropic else OpenAiErrorFormat()


def request_id_of(request: Request) -> RequestId:
    return RequestId(request.state.request_id)


def key_of(request: Request) -> ApiKey:
    key = request.state.key
    assert isinstance(key, ApiKey)
    return key


def peer_of(request: Request) -> str | None:
    """Return the address of the connection; None if unknown."""
    return request.client.host if request.client is not None else None


def json_response(body: Any) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


class EndpointApp:
    """An ASGI app around one handler.

    Args:
        ring: None if the path needs no API key.
        guard: None if web pages of others may call the path.
    """

    def __init__(
        self,
        handler: Handler,
        ring: ApiKeyRing | None,
        guard: PageGuard | None,
        metrics: GatewayMetrics,
    ) -> None:
        self._handler = handler
        self._ring = ring
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            if self._guard is not None:
                self._guard.check(request.method, request.headers)
            if self._ring is not None:
                request.state.key = self._ring.find(api_key(request))
            response = await self._handler(request)
        except ClusterError as error:
            if (span := span_of(scope)) is not None:
                span.error = error.code
            key = getattr(request.state, "key", None)
            self._metrics.request_refused(key.client if key is not None else "", error.code)
            logger.info(
                "refused: %s", error.message,
                extra={"request_id": request_id_of(request), "code": error.code},
            )  # fmt: skip
            response = ErrorResponseApp(error, dialect_of(request.url.path))
        except ClientDisconnect:
            return
        await response(scope, receive, send)


class RequestIdMiddleware:
    """Assigns an id to each request. The response has the id in the headers of both APIs, and the
    header that lists ignored fields. Unexpected exceptions are logged. A request that is cancelled
    before its response began gets the error `draining`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                encoded_id = request_id.encode()
                added = [(b"x-request-id", encoded_id), (b"request-id", encoded_id)]
                if ignored := scope["state"].get("ignored_fields"):
                    added.append((IGNORED_FIELDS_HEADER.encode(), ignored.encode()))
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # by the shutdown, after the drain timeout
            if not started:
                await ErrorResponseApp(ShuttingDown(), dialect_of(scope["path"]))(
                    scope, receive, send_with_headers
                )
        except Exception:  # the caller has received an error or a broken connection
            logger.exception("a request failed", extra={"request_id": request_id})


class ErrorResponseApp:
    """The response for an error.

    If the caller is still sending the body, the body is read and discarded for at most 2 s: a
    connection that closes earlier is reset, and the caller would not receive the response.

    Args:
        headers: sent in addition to those of the error.
    """

    def __init__(
        self, error: ClusterError, dialect: ApiErrorFormat, headers: Mapping[str, str] | None = None
    ) -> None:
        self._error = error
        self._dialect = dialect
        self._headers = headers or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._dialect.http_error(self._error, scope["state"]["request_id"])
        body = orjson.dumps(response.body)
        headers = json_headers(body, {**response.headers, **self._headers})
        unread = self._error.code in ("payload_too_large", "request_timeout")
        if unread:
            headers.append((b"connection", b"close"))
        if response.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": unread})
        if unread:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DISCARD_TIMEOUT_S):
                    await _discard(receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive) -> None:
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)


def api_key(request: Request) -> str | None:
    """Return the key from OpenAI's header, else from Anthropic's."""
    authorization: Any = request.headers.get("authorization", "")
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return str(credentials.strip())
    return request.headers.get("x-api-key")
