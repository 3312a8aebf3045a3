"""Answers that are values: a pydantic model, or a JSON schema, becomes fields of a request, and the
answer's text a value of it."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import DataclassSchema, ModelSchema, TypedDictSchema

from shared.codec import first_problem, shortened
from shared.errors import InvalidAnswer, InvalidRequest
from shared.messages.request import InferenceRequest
from shared.messages.schemas import check_schema
from shared.messages.stream import Usage
from shared.strict_json import strict_json

Schema = type[BaseModel] | Mapping[str, Any]
"""What an answer shall be: a pydantic model, or a JSON schema."""

M = TypeVar("M", bound=BaseModel)

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARACTERS = 64


class _Closed(GenerateJsonSchema):
    """Objects have the fields of their class alone, unless it says otherwise: what pydantic would
    pass over need not be generated."""

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
    """The field of a request that binds its answer to a schema.

    Raises:
        InvalidRequest: it is no schema, or JSON cannot hold it.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        try:
            body: Any = schema.model_json_schema(schema_generator=_Closed)
        except (PydanticUserError, AttributeError) as error:  # of BaseModel itself
            problem = str(error).splitlines()[0]
            raise _refused(f"{schema.__name__} has no JSON schema: {problem}") from None
        name = _NO_NAME.sub("_", schema.__name__)[:_NAME_CHARACTERS]
    elif isinstance(schema, Mapping):
        body, name = dict(schema), "answer"
    else:
        given = shortened(repr(schema))
        raise _refused(f"it is a pydantic model, or a JSON schema as a dict, and not {given}")
    try:
        with suppress(RecursionError):  # the other check says how deep it may be
            json.dumps(body, allow_nan=False)  # the encoder of requests writes NaN as null
        check_schema(body)
    except (TypeError, ValueError) as error:
        raise _refused(str(error)) from None
    return {"type": "json_schema", "json_schema": {"name": name, "schema": body}}


def bind(fields: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """A request's fields with those that bind its answer to a schema.

    Raises:
        InvalidRequest: as `response_format` does, or the fields bind the answer already.
    """
    for name in ("response_format", "structured_outputs"):
        if fields.get(name) is not None:
            raise _refused(f"`{name}` says already what to answer")
    return {**fields, "response_format": response_format(schema)}


def check_single(request: InferenceRequest) -> None:
    """Refuse to make one value of several answers, or of none.

    Raises:
        InvalidRequest: it asks for them.
    """
    if request.choices > 1:
        asked = f"`n` is {request.n}" if request.n > 1 else "`prompt` is a list"
        raise _refused(f"it is for a single answer, and {asked}")
    if request.count_only:
        raise _refused("with `count_only` there is no answer")


def read_value(schema: Schema, text: str, finish_reason: str | None, usage: Usage) -> Any:
    """The value that an answer is: an instance of the model, or what its JSON says.

    That it is a value of a schema given as a dict was seen to where it was generated; it is not
    checked again.

    Raises:
        InvalidAnswer: it is none.
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
        raise InvalidAnswer(f"the answer is no {schema.__name__}: {problem}", text) from None


def _may_go_on(value: Any) -> bool:
    """Whether it may be the beginning of another value: a number may have had more digits."""
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


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(f"schema: {problem}", param="schema")
