"""The body of a request: read with limits of size and time, and validated."""

import asyncio
import zlib
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from controller.gateway.unknown_fields import remove_unknown_fields
from shared.errors import InvalidRequest, RequestError
from shared.external_model import ExternalInput
from shared.messages.request_parsing import reject_unusual_objects, to_invalid_request

E = TypeVar("E", bound=ExternalInput)

_GZIP = 16 + zlib.MAX_WBITS


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """Return the whole body, decompressed.

    Raises:
        RequestError: the body is too large or takes too long, its content type is not JSON, or its
            encoding is not gzip.
        ClientDisconnect: the caller disconnected before the end of the body.
    """
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if content_type.lower() != "application/json":
        raise InvalidRequest(f"the body must be application/json, not {content_type[:100]!r}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise RequestError(
            f"the body must be plain or gzip-encoded, not {encoding[:100]!r}",
            code="unsupported_encoding",
        )
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise RequestError(
            f"no complete body within {timeout_s:g} s", code="request_timeout"
        ) from None
    return _decompressed(body, max_bytes) if encoding == "gzip" else bytes(body)


def _decompressed(body: bytes | bytearray, max_bytes: int) -> bytes:
    """Return the decompressed body; never allocates more than `max_bytes` + 1 for it."""
    decoder = zlib.decompressobj(_GZIP)
    try:
        decoded = decoder.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not valid gzip: {error}") from None
    if len(decoded) > max_bytes:
        raise _too_large(max_bytes)
    if not decoder.eof or decoder.unused_data:
        raise InvalidRequest("the body must be exactly one gzip member")
    return decoded


def parse_body(request_type: type[E], body: bytes, *, ignore_unknown: bool) -> tuple[E, list[str]]:
    """Return the request, and the paths of the fields that were ignored.

    Raises:
        InvalidRequest: the body is invalid; `param` names the field.
    """
    reject_unusual_objects(body)
    try:
        request = request_type.model_validate_json(body, extra="allow" if ignore_unknown else None)
    except ValidationError as error:
        raise to_invalid_request(error) from None
    return request, remove_unknown_fields(request) if ignore_unknown else []


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(f"the body has more than {max_bytes} bytes", code="payload_too_large")
