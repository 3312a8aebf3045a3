"""Errors in the format of OpenAI's APIs."""

from collections.abc import Mapping
from typing import Any

from controller.gateway.error_format import (
    ApiErrorResponse,
    prompt_is_too_long,
    retry_headers,
    status_of,
)
from shared.errors import ClusterError

_CODES: Mapping[str, str] = {
    "unauthenticated": "invalid_api_key",
    "unknown_model": "model_not_found",
    "unknown_skill": "model_not_found",
}
"""OpenAI's codes, which clients know; other errors keep the cluster's code."""

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class OpenAiErrorFormat:
    def http_error(self, error: ClusterError, request_id: str) -> ApiErrorResponse:
        return ApiErrorResponse(_status(error), error_body(error), retry_headers(error))


def error_body(error: ClusterError) -> dict[str, Any]:
    status = _status(error)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {
        "error": {
            "message": error_message(error),
            "type": kind,
            "param": error.param,
            "code": _code(error),
        }
    }


def _status(error: ClusterError) -> int:
    return 400 if _previous_response_missing(error) else status_of(error)


def _code(error: ClusterError) -> str:
    if _previous_response_missing(error):
        return "previous_response_not_found"
    return _CODES.get(error.code, error.code)


def _previous_response_missing(error: ClusterError) -> bool:
    """Whether `previous_response_id` was not found. After this error clients send the whole
    conversation."""
    return error.code == "not_found" and error.param == "previous_response_id"


def error_message(error: ClusterError) -> str:
    if prompt_is_too_long(error):
        return f"This model's maximum context length is exceeded. {error.message}"
    return error.message
