"""Messages as JSON: decoding returns a message or raises one `DecodeError`."""

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


class InternalMessagePart(BaseModel):
    """Base of the objects inside internal messages."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def encode(message: BaseModel) -> bytes:
    """Return the message as JSON, without the fields that are None."""
    return message.__pydantic_serializer__.to_json(message, exclude_none=True)


def decode(kind: type[M], payload: bytes) -> M:
    """Return the message in `payload`.

    The config of `kind` says whether unknown fields are ignored or rejected, nested ones too:
    a client's request inside a newer controller's dispatch may have fields unknown here.

    Raises:
        DecodeError: `payload` is not JSON, or not of this kind; `param` names the field.
    """
    try:
        return kind.model_validate_json(payload, extra=kind.model_config.get("extra"))
    except ValidationError as error:
        param, message = first_problem(error)
        raise DecodeError(f"not a {kind.__name__}: {message}", payload, param=param) from None


def decode_object(payload: bytes) -> dict[str, Any]:
    """Return the JSON object in `payload` without validation: for the hot path.

    Raises:
        DecodeError: `payload` is not a JSON object.
    """
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"no JSON: {error}", payload) from None
    if not isinstance(value, dict):
        raise DecodeError(f"expected a JSON object, not {type(value).__name__}", payload)
    return value


def first_problem(error: ValidationError) -> tuple[str | None, str]:
    """Return the dotted path of the first problem, and its description.

    A validator of several fields raises `ValueError("field: problem")`: the path ends with `field`.
    """
    problem = error.errors(include_url=False, include_input=False)[0]
    parts = [shortened(part) for part in problem["loc"] if part != ""]  # an unnamed tag
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
    """Return a name from outside, cut to what an error message shows."""
    text = str(name)
    return text if len(text) <= limit else f"{text[:limit]}..."


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a message type, as stored in `docs/schemas`."""
    return TypeAdapter(kind).json_schema()
