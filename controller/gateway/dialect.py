"""What the two APIs say differently: the shape of an error, and its status."""

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
_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as HTTP says it."""

    status: int
    body: dict[str, Any]
    headers: Headers


class ApiDialect(Protocol):
    """One API's way to speak of errors."""

    def refusal(self, error: ClusterError, request_id: str) -> HttpError:
        """The response to a request that failed before its answer began."""


def json_headers(body: bytes, headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers of a JSON body, and others, as ASGI wants them."""
    return [
        *((name.encode(), value.encode()) for name, value in headers.items()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]


def status_of(error: ClusterError) -> int:
    """Of codes that are not listed the request was right, and something is not there now."""
    return _STATUSES.get(error.code, _UNAVAILABLE)


def prompt_is_too_long(error: ClusterError) -> bool:
    """Whether a shorter prompt would do. Programs that would then shorten it know this by each
    API's own words in the message, whatever the code says."""
    return error.code == "context_length_exceeded"


def retry_headers(error: ClusterError) -> Headers:
    """When to come again, in seconds and milliseconds, and whether at all.

    The official clients obey `x-should-retry` and `retry-after-ms`, which are no standard.
    """
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.retryable and error.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_ms / 1000)))
        headers["retry-after-ms"] = str(error.retry_after_ms)
    return headers
