"""Errors in OpenAI's shape."""

from collections.abc import Mapping
from typing import Any

from controller.gateway.dialect import Refusal, prompt_is_too_long, retry_headers, status_of
from shared.errors import ClusterError

_CODES: Mapping[str, str] = {
    "unauthenticated": "invalid_api_key",
    "unknown_model": "model_not_found",
    "unknown_skill": "model_not_found",
}
"""Where OpenAI has a code that clients know; else the cluster's own."""

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class OpenAiDialect:
    def refusal(self, error: ClusterError, request_id: str) -> Refusal:
        return Refusal(status_of(error), error_body(error), retry_headers(error))


def error_body(error: ClusterError) -> dict[str, Any]:
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {
        "error": {
            "message": _message(error),
            "type": kind,
            "param": error.param,
            "code": _CODES.get(error.code, error.code),
        }
    }


def _message(error: ClusterError) -> str:
    if prompt_is_too_long(error):
        return f"This model's maximum context length is exceeded. {error.message}"
    return error.message
