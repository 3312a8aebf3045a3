"""Typed answers: a pydantic model or a JSON schema becomes a field of a request, and the text of
the answer becomes its value."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import DataclassSchema, ModelSchema, TypedDictSchema

from shared.codec import first_problem, shortened, strict_json
from shared.errors import InvalidAnswer, InvalidRequest
from shared.messages.request import InferenceRequest
from shared.messages.schemas import check_schema
from shared.messages.stream import Usage

Schema = type[BaseModel] | Mapping[str, Any]
"""The schema of an answer: a pydantic model, or a JSON schema."""

M = TypeVar("M", bound=BaseModel)

_INVALID_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARACTERS = 64


class _Closed(GenerateJsonSchema):
    """Objects have only the fields of their class, unless the class allows others: fields that
    pydantic would ignore need not be generated."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def response_format(schema: Schema) -> dict[str, Any]:
    """Return the field of a request that constrains its answer to a schema.

    Raises:
        InvalidRequest: `schema` is invalid, or cannot be written as JSON.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        try:
            body: Any = schema.model_json_schema(schema_generator=_Closed)
        except (PydanticUserError, AttributeError) as error:  # AttributeError: BaseModel itself
            problem = str(error).splitlines()[0]
            raise _invalid(f"{schema.__name__} has no JSON schema: {problem}") from None
        name = _INVALID_IN_NAMES.sub("_", schema.__name__)[:_NAME_CHARACTERS]
    elif isinstance(schema, Mapping):
        body, name = dict(schema), "answer"
    else:
        given = shortened(repr(schema))
        raise _invalid(f"expected a pydantic model, or a JSON schema as a dict, not {given}")
    try:
        with suppress(RecursionError):  # `check_schema` limits the depth
            json.dumps(body, allow_nan=False)  # the encoder of requests writes NaN as null
        check_schema(body)
    except (TypeError, ValueError) as error:
        raise _invalid(str(error)) from None
    return {"type": "json_schema", "json_schema": {"name": name, "schema": body}}


def bind(fields: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the fields of a request, with the one that constrains its answer to a schema.

    Raises:
        InvalidRequest: as `response_format`, or `fields` has a constraint already.
    """
    for name in ("response_format", "structured_outputs"):
        if fields.get(name) is not None:
            raise _invalid(f"`{name}` says already what to answer")
    return {**fields, "response_format": response_format(schema)}


def check_single(request: InferenceRequest) -> None:
    """Check that a request has exactly one answer.

    Raises:
        InvalidRequest: it has several, or none.
    """
    if request.choices > 1:
        reason = f"`n` is {request.n}" if request.n > 1 else "`prompt` is a list"
        raise _invalid(f"it is for a single answer, but {reason}")
    if request.count_only:
        raise _invalid("with `count_only` there is no answer")


def read_value(schema: Schema, text: str, finish_reason: str | None, usage: Usage) -> Any:
    """Return the value of an answer: an instance of the model, or the parsed JSON.

    A schema given as a dict constrained the generation of the answer, which is not validated again.

    Raises:
        InvalidAnswer: the answer has no such value.
    """
    if finish_reason == "tool_calls":
        raise InvalidAnswer(
            "the model called tools instead of answering; `collect` of a stream gives the calls",
            text,
        )
    try:
        value = strict_json(text)
    except (ValueError, RecursionError) as error:
        if finish_reason in ("length", "cancelled"):
            raise _incomplete(text, finish_reason, usage) from None
        raise InvalidAnswer(f"the answer is no JSON: {error}", text) from None
    if finish_reason in ("length", "cancelled") and _may_go_on(value):
        raise _incomplete(text, finish_reason, usage)
    if not isinstance(schema, type):
        return value
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        problem = first_problem(error)[1]
        raise InvalidAnswer(f"the answer is no valid {schema.__name__}: {problem}", text) from None


def _may_go_on(value: Any) -> bool:
    """Whether a value may be incomplete: a number may have had more digits."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _incomplete(text: str, finish_reason: str, usage: Usage) -> InvalidAnswer:
    tokens = f"{usage.completion_tokens} tokens"
    if usage.reasoning_tokens:
        tokens += f", {usage.reasoning_tokens} of them reasoning"
    if finish_reason == "length":
        message = f"the answer broke off after {tokens}: give it more with max_tokens"
    else:
        message = f"the answer was cancelled after {tokens}"
    return InvalidAnswer(message, text, code="answer_incomplete")


def _invalid(problem: str) -> InvalidRequest:
    return InvalidRequest(f"schema: {problem}", param="schema")
