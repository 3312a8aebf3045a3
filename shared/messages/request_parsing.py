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
from shared.messages.request import MAX_INPUTS, MAX_STOP_STRINGS, InferenceRequest

MAX_KEYS = 4096
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
    """Return the request in `payload`.

    Raises:
        InvalidRequest: `payload` is not a valid request; `param` names the invalid field.
    """
    reject_unusual_objects(payload)
    try:
        return InferenceRequest.model_validate_json(payload)
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
    """The fields of an invalid request that are required to send its error to the client."""

    request_id: RequestId | None = None
    multiplex: bool = False

    @classmethod
    def of(cls, payload: bytes) -> "RequestHeader":
        try:
            body = json.loads(payload)  # unlike orjson it accepts NaN and lone surrogates
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(body, dict):
            return cls()
        value = body.get("request_id")
        multiplex = body.get("multiplex") is True
        if isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and value.isprintable():
            return cls(RequestId(value), multiplex)
        return cls(None, multiplex)


def reject_unusual_objects(payload: bytes) -> None:
    """Reject an object with a duplicate key, whose value would depend on the parser, or with more
    keys than any request needs.

    Raises:
        InvalidRequest: `param` is the key.
    """
    if _is_plain(payload):
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > MAX_KEYS:
            raise InvalidRequest(f"an object has {len(pairs)} keys; at most {MAX_KEYS} are allowed")
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(f"{shortened(key)}: duplicate key", param=shortened(key))
            seen.add(key)

    with contextlib.suppress(ValueError, RecursionError):  # not JSON: the next parser reports it
        json.loads(payload, object_pairs_hook=check)


def _is_plain(payload: bytes) -> bool:
    """Cheap check for payloads that have no duplicate keys, because encoding them again changes
    nothing, and are too short for too many keys."""
    if len(payload) > MAX_KEYS * len('"":0,'):
        return False
    try:
        return orjson.dumps(orjson.loads(payload)) == payload
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return False


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
