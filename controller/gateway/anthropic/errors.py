"""Errors in the format of Anthropic's API."""

from collections.abc import Mapping
from typing import Any

from controller.gateway.error_format import (
    ApiErrorResponse,
    prompt_is_too_long,
    retry_headers,
    status_of,
)
from shared.errors import ClusterError

_OVERLOADED = 529

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}

_NO_THREADS = {"error_code": "thread_unsupported_request"}
"""After this error the official clients send the whole conversation each time."""


class AnthropicErrorFormat:
    def http_error(self, error: ClusterError, request_id: str) -> ApiErrorResponse:
        return ApiErrorResponse(_status(error), error_body(error, request_id), retry_headers(error))


def _status(error: ClusterError) -> int:
    return _OVERLOADED if error.code in ("queue_full", "memory_pressure") else status_of(error)


def error_body(error: ClusterError, request_id: str) -> dict[str, Any]:
    status = _status(error)
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    prefix = "prompt is too long: " if prompt_is_too_long(error) else ""
    fields: dict[str, Any] = {"type": kind, "message": prefix + error.message}
    if error.code == "not_supported" and error.param == "thread":
        fields["details"] = _NO_THREADS
    return {"type": "error", "error": fields, "request_id": request_id}
