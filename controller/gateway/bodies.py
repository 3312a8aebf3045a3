"""The body of a request: read within bounds of size and time, and checked."""

import asyncio
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from controller.gateway.unknown_fields import take_unknown_fields
from shared.errors import InvalidRequest, RequestError
from shared.messages.edge import Edge
from shared.messages.request import invalid, refuse_strange_objects

E = TypeVar("E", bound=Edge)


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """All of it.

    Raises:
        RequestError: it has too many bytes, takes too long, or is no JSON by its header.
        ClientDisconnect: the caller hung up before its end.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise InvalidRequest(f"the body must be application/json, not {kind[:100]!r}")
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
    return bytes(body)


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
