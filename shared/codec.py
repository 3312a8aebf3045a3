"""JSON in, JSON out: decoding returns a message or raises one `DecodeError`."""

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from shared.errors import DecodeError
from shared.version import PROTOCOL

M = TypeVar("M", bound=BaseModel)


class InternalMessage(BaseModel):
    """Base of messages between our own processes.

    Unknown fields are ignored, so that a newer process can talk to an older one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    protocol: int = PROTOCOL


class InternalPart(BaseModel):
    """Base of what stands inside an internal message."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def encode(message: BaseModel) -> bytes:
    """The message as JSON; fields that are None are left out."""
    return message.__pydantic_serializer__.to_json(message, exclude_none=True)


def decode(kind: type[M], payload: bytes) -> M:
    """The message that `payload` holds.

    Whether unknown fields are ignored or refused is the kind's rule, also for what it holds:
    a client's request inside a dispatch of a newer controller may have fields we don't know.

    Raises:
        DecodeError: the bytes are no JSON, or not of this kind; `param` names the field.
    """
    try:
        return kind.model_validate_json(payload, extra=kind.model_config.get("extra"))
    except ValidationError as error:
        param, message = first_problem(error)
        raise DecodeError(f"not a {kind.__name__}: {message}", payload, param=param) from None


def decode_object(payload: bytes) -> dict[str, Any]:
    """The JSON object that `payload` holds, unchecked: for the hot path.

    Raises:
        DecodeError: the bytes are no JSON object.
    """
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"no JSON: {error}", payload) from None
    if not isinstance(value, dict):
        raise DecodeError(f"expected a JSON object, not {type(value).__name__}", payload)
    return value


def first_problem(error: ValidationError) -> tuple[str | None, str]:
    """Where the first problem lies, as a dotted path, and what it is.

    A check of several fields raises `ValueError("field: what is wrong")`: the path ends there.
    """
    problem = error.errors(include_url=False, include_input=False)[0]
    parts = [shortened(part) for part in problem["loc"] if part != ""]  # a tag without a name
    message = problem["msg"]
    if problem["type"] == "extra_forbidden":
        message = "unknown field"
    elif problem["type"] == "at_key":
        parts = [*parts, shortened(problem["ctx"]["key"])]
    elif problem["type"] == "value_error":
        message = message.removeprefix("Value error, ")
        field, _, rest = message.partition(": ")
        if field.isidentifier() and rest:
            parts, message = [*parts, field], rest
    path = ".".join(parts)
    return path or None, f"{path}: {message}" if path else message


def shortened(name: object, limit: int = 80) -> str:
    """A name from outside, as far as an error shows it."""
    text = str(name)
    return text if len(text) <= limit else f"{text[:limit]}..."


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a message type, as `docs/schemas` keeps it."""
    return TypeAdapter(kind).json_schema()
