"""The body of a request: read within bounds of size and time, and checked."""

import asyncio
import zlib
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from controller.gateway.unknown_fields import take_unknown_fields
from shared.errors import InvalidRequest, RequestError
from shared.external_model import ExternalModel
from shared.messages.request_parsing import invalid, refuse_strange_objects

E = TypeVar("E", bound=ExternalModel)

_GZIP = 16 + zlib.MAX_WBITS


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """All of it, decoded.

    Raises:
        RequestError: it has too many bytes, takes too long, is no JSON by its header, or encoded
            otherwise than with gzip.
        ClientDisconnect: the caller hung up before its end.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise InvalidRequest(f"the body must be application/json, not {kind[:100]!r}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise RequestError(
            f"the body must be plain or encoded with gzip, not {encoding[:100]!r}",
            code="unsupported_encoding",
        )
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise RequestError(
            f"the body did not come in whole within {timeout_s:g} s", code="request_timeout"
        ) from None
    return _unzipped(body, max_bytes) if encoding == "gzip" else bytes(body)


def _unzipped(body: bytes | bytearray, max_bytes: int) -> bytes:
    """At most so many bytes are ever made of a body."""
    decoder = zlib.decompressobj(_GZIP)
    try:
        decoded = decoder.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is no gzip: {error}") from None
    if len(decoded) > max_bytes:
        raise _too_large(max_bytes)
    if not decoder.eof or decoder.unused_data:
        raise InvalidRequest("the body is not one whole piece of gzip")
    return decoded


def parse_body(shape: type[E], body: bytes, *, ignore_unknown: bool) -> tuple[E, list[str]]:
    """The request in a body, and the paths of the fields that were ignored.

    Raises:
        InvalidRequest: `param` names the field at fault.
    """
    refuse_strange_objects(body)
    try:
        request = shape.model_validate_json(body, extra="allow" if ignore_unknown else None)
    except ValidationError as error:
        raise invalid(error) from None
    return request, take_unknown_fields(request) if ignore_unknown else []


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(f"the body has more than {max_bytes} bytes", code="payload_too_large")
