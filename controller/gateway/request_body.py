"""The body of a request: read with limits of size and time, and validated."""

import asyncio
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from starlette.requests import Request

from shared.codec import shortened
from shared.errors import InvalidRequest, RequestError
from shared.messages.json_bounds import validate_json
from shared.messages.request_parsing import to_invalid_request

HEADER = "x-ignored-fields"
_MAX_BYTES = 1024
_UNSAFE = re.compile(r"[^A-Za-z0-9_$@:*.-]")


def remove_unknown_fields(request: BaseModel) -> list[str]:
    """Remove unknown fields at every depth; return their sorted paths, with `*` for a list index.

    Args:
        request: validated with `extra="allow"`; is mutated.
    """
    return sorted({".".join(path) for path in _removed(request, ())})


def header_value(paths: Sequence[str]) -> str:
    """Return a header value with as many paths as fit; clients choose the names in the paths."""
    value = ""
    for path in map(_sanitized, paths):
        longer = f"{value}, {path}" if value else path
        if len(longer) > _MAX_BYTES - len(", ..."):
            return f"{value}, ..."
        value = longer
    return value


def _removed(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    match value:
        case BaseModel():
            unknown = value.__pydantic_extra__
            if unknown and value.model_config.get("extra") != "allow":
                yield from ((*path, shortened(name)) for name in unknown)
                unknown.clear()
            for name in value.model_fields_set:
                yield from _removed(getattr(value, name, None), (*path, name))
        case list():
            for element in value:
                if isinstance(element, BaseModel):
                    yield from _removed(element, (*path, "*"))


def _sanitized(path: str) -> str:
    return _UNSAFE.sub("?", path)


@dataclass(frozen=True)
class NoneAlias:
    """Annotation of an optional field: `value` is read as None."""

    value: int | str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._replaced, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"const": self.value}]}

    def _replaced(self, value: Any) -> Any:
        is_sentinel = type(value) is type(self.value) and value == self.value
        return None if is_sentinel else value


E = TypeVar("E", bound=BaseModel)

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
    try:
        request, _ = validate_json(request_type, body, allow_unknown=ignore_unknown)
    except ValidationError as error:
        raise to_invalid_request(error) from None
    return request, remove_unknown_fields(request) if ignore_unknown else []


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(f"the body has more than {max_bytes} bytes", code="payload_too_large")
