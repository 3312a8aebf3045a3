"""Messages as JSON: decoding returns a message or raises `DecodeError`. Bases of their types."""

import json
import re
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from shared.errors import DecodeError
from shared.version import PROTOCOL


class StrictInput(BaseModel):
    """Strict; rejects unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, serialize_by_alias=True
    )


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset({
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "messages",
    "tokenize", "tools",
})  # fmt: skip
"""Variables and options of chat templates that requests and settings cannot set."""


def _check_variables(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if not _VARIABLE.fullmatch(name):
            raise PydanticCustomError("at_key", "`{key}` is no valid variable name", {"key": name})
        if name in _RESERVED:
            raise PydanticCustomError("at_key", "`{key}` is reserved", {"key": name})
    return values


TemplateValues = Annotated[dict[str, Any], Field(max_length=64), AfterValidator(_check_variables)]
"""Variables for a chat template, besides messages and tools."""


M = TypeVar("M", bound=BaseModel)

MAX_PROTOCOL = 10**6


class WireMessage(BaseModel):
    """Base of messages between our own processes.

    Unknown fields are ignored, so that a newer process can talk to an older one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    protocol: Annotated[int, Field(ge=0, le=MAX_PROTOCOL)] = PROTOCOL


class WireMessagePart(BaseModel):
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


def strict_json(text: str) -> Any:
    """Parse JSON; raises ValueError or RecursionError if it is invalid, or has a `NaN`."""
    return json.loads(text, parse_constant=_reject)


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
