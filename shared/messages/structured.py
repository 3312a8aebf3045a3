"""Constraints of the content of an answer: OpenAI's `response_format`, vLLM's
`structured_outputs`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from shared.codec import StrictInput
from shared.messages.schemas import MAX_SCHEMA_BYTES, check_schema

StructureKind = Literal["json", "regex", "choice", "grammar"]
_MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class Structure:
    """The constraint of the content of an answer; `param` is the field of the request that has
    it."""

    kind: StructureKind
    value: Any
    param: str


class NamedSchema(StrictInput):
    """`strict` has no effect: a schema is always enforced."""

    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    schema_: Any = Field(alias="schema")
    strict: bool | None = None

    @field_validator("schema_")
    @classmethod
    def _bounded(cls, schema: Any) -> Any:
        check_schema(schema)
        return schema


class ResponseFormat(StrictInput):
    """Free text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema: it goes with the type `json_schema`, and only with it")
        return self

    @property
    def structure(self) -> Structure | None:
        """None if the content is not constrained."""
        if self.json_schema is not None:
            return Structure("json", self.json_schema.schema_, "response_format.json_schema.schema")
        if self.type == "json_object":
            return Structure("json", {"type": "object"}, "response_format")
        return None


_Long = Annotated[str, Field(min_length=1, max_length=MAX_SCHEMA_BYTES)]


class StructuredOutputs(StrictInput):
    """Exactly one of: a JSON schema, a regular expression for the whole content, a list of possible
    contents, a grammar in Lark's notation."""

    json_: Any = Field(None, alias="json")
    regex: _Long | None = None
    choice: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=4096)]],
            Field(min_length=1, max_length=_MAX_CHOICES, fail_fast=True),
        ]
        | None
    ) = None
    grammar: _Long | None = None

    @field_validator("json_")
    @classmethod
    def _bounded(cls, schema: Any) -> Any:
        if schema is not None:
            check_schema(schema)
        return schema

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [self.json_, self.regex, self.choice, self.grammar]
        if sum(each is not None for each in given) != 1:
            raise ValueError("exactly one of json, regex, choice and grammar is needed")
        return self

    @property
    def structure(self) -> Structure:
        given: dict[StructureKind, Any] = {
            "json": self.json_, "regex": self.regex, "choice": self.choice, "grammar": self.grammar
        }  # fmt: skip
        kind, value = next(item for item in given.items() if item[1] is not None)
        return Structure(kind, value, f"structured_outputs.{kind}")
