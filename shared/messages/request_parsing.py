"""Parsing and validation of a client's request; the first problem becomes an error with a field."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from shared.codec import first_problem, shortened
from shared.errors import InvalidRequest, RequestError
from shared.ids import MAX_ID_LENGTH, RequestId
from shared.messages.json_bounds import BeyondBounds, Outline, check_counts, validate_json
from shared.messages.request import MAX_INPUTS, MAX_STOP_STRINGS, InferenceRequest

# Errors of fields with several allowed shapes; pydantic's own message would list each shape.
_SHAPES = {
    "prompt": "must be a string, a list of token ids, or a non-empty list of either",
    "content": "must be a string or a list of text parts",
    "stop": f"must be a string or a list of at most {MAX_STOP_STRINGS} non-empty strings "
    "of at most 256 characters",
    "input": "must be a non-empty string, a list of token ids, or a list of up to "
    f"{MAX_INPUTS} of either",
    "query": f"must be a non-empty string, or a list of up to {MAX_INPUTS} of them",
    **dict.fromkeys(("text_1", "text_2"), "must be a non-empty string, or a list of them"),
    "tool_choice": "must be `none`, `auto`, `required`, or "
    '{"type": "function", "function": {"name": ...}}',
}


def parse_request(payload: bytes) -> InferenceRequest:
    """Return the request in a body that this process wrote. Whether it has too much of something
    the leader finds out.

    Raises:
        InvalidRequest: `payload` is not a valid request; `param` names the invalid field.
    """
    try:
        return InferenceRequest.model_validate_json(payload)
    except ValidationError as error:
        raise to_invalid_request(error) from None


def parse_measured(payload: bytes) -> tuple[InferenceRequest, Outline]:
    """Return the request in a body from outside, and what the body has.

    Raises:
        InvalidRequest: as `parse_request`, or the body has too much of something.
    """
    try:
        return validate_json(InferenceRequest, payload)
    except ValidationError as error:
        raise to_invalid_request(error) from None


def check_request(body: dict[str, Any]) -> None:
    """Validate as `parse_request`, for values that cannot be written as JSON.

    Raises:
        InvalidRequest: `param` names the invalid field.
    """
    try:
        InferenceRequest.model_validate(body)
    except ValidationError as error:
        raise to_invalid_request(error) from None


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The fields of an invalid request that are required to send its error to the client. A body
    with too much of something is not parsed for them."""

    request_id: RequestId | None = None
    multiplex: bool = False

    @classmethod
    def of(cls, payload: bytes) -> "RequestHeader":
        try:
            check_counts(payload)
        except BeyondBounds:
            return cls()
        body: Any = None
        with contextlib.suppress(orjson.JSONDecodeError):
            body = orjson.loads(payload)
        if body is None:
            with contextlib.suppress(ValueError, RecursionError):
                body = json.loads(payload)  # it accepts NaN and lone surrogates
        if not isinstance(body, dict):
            return cls()
        value = body.get("request_id")
        multiplex = body.get("multiplex") is True
        if isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and value.isprintable():
            return cls(RequestId(value), multiplex)
        return cls(None, multiplex)


def to_invalid_request(error: ValidationError) -> InvalidRequest:
    """Return the first problem that pydantic found, with the name of the field."""
    problem = error.errors(include_url=False)[0]
    location = problem["loc"]
    for position, part in enumerate(location[:-1]):
        if (
            location[0] != "logit_bias"
            and part in _SHAPES
            and not isinstance(location[position + 1], int)
        ):
            path = ".".join(map(str, location[: position + 1]))
            return InvalidRequest(f"{path}: {_SHAPES[str(part)]}", param=path)
    if location[:1] == ("logit_bias",) and location[-1] == "[key]":
        key = f"logit_bias.{shortened(location[1])}"
        return InvalidRequest(f"{key}: a key must be a token id", param=key)
    param, message = first_problem(error)
    return InvalidRequest(message, param=param)


def reject_unsupported(asked: Mapping[str, bool]) -> None:
    """Reject the first field that requires something that is not supported yet.

    Raises:
        RequestError: `param` names the field.
    """
    for param, is_asked in asked.items():
        if is_asked:
            raise RequestError(f"{param}: not supported yet", code="not_supported", param=param)
