"""How OpenAI's and Anthropic's APIs represent errors: body, status and headers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from shared.errors import ClusterError

Headers = dict[str, str]

_STATUSES: Mapping[str, int] = {
    "invalid_request": 400,
    "not_supported": 400,
    "context_length_exceeded": 400,
    "unauthenticated": 401,
    "not_allowed": 403,
    "unknown_skill": 404,
    "unknown_model": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "request_id_conflict": 409,
    "payload_too_large": 413,
    "unsupported_encoding": 415,
    "rate_limit_exceeded": 429,
    "headers_too_large": 431,
    "request_failed": 500,
    "answer_too_large": 500,
    "internal_error": 500,
    "deadline_exceeded": 504,
}
_DEFAULT_STATUS = 503


@dataclass(frozen=True, slots=True)
class ApiErrorResponse:
    """The HTTP response for an error."""

    status: int
    body: dict[str, Any]
    headers: Headers


class ApiErrorFormat(Protocol):
    """The error format of one API."""

    def http_error(self, error: ClusterError, request_id: str) -> ApiErrorResponse:
        """Return the response to a request that failed before its answer began."""


def json_headers(body: bytes, headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return `headers` and those of a JSON body, in ASGI's form."""
    return [
        *((name.encode(), value.encode()) for name, value in headers.items()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]


def status_of(error: ClusterError) -> int:
    """Return the HTTP status; 503 for other codes, which mean that the cluster is unavailable."""
    return _STATUSES.get(error.code, _DEFAULT_STATUS)


def prompt_is_too_long(error: ClusterError) -> bool:
    """Whether the prompt exceeds the context length. Programs that shorten their prompts recognise
    this error by the API's own wording in the message, not by the code."""
    return error.code == "context_length_exceeded"


def retry_headers(error: ClusterError) -> Headers:
    """Return the headers that say whether to retry, and when, in seconds and milliseconds.

    The official clients obey `x-should-retry` and `retry-after-ms`, which are not standardised.
    """
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.retryable and error.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_ms / 1000)))
        headers["retry-after-ms"] = str(error.retry_after_ms)
    return headers
