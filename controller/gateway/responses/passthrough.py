"""Tools and items of OpenAI's own service: accepted, stored and listed, but not interpreted."""

from typing import Annotated, Any, Self

import orjson
from pydantic import AfterValidator, Field, model_validator

from shared.external_model import ExternalInput


def _serialisable(value: Any) -> Any:
    """Return the value. Raise ValueError if it is not portable JSON."""
    try:
        orjson.dumps(value)
    except TypeError:
        raise ValueError("it has a number beyond 64 bits") from None
    return value


PlainObject = Annotated[dict[str, Any], AfterValidator(_serialisable)]
PlainList = Annotated[list[Any], Field(fail_fast=True), AfterValidator(_serialisable)]


class UninterpretedObject(ExternalInput, extra="allow"):
    """An object of a type that is not supported, with all its fields."""

    type: Annotated[str, Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        _serialisable(self.__pydantic_extra__)
        return self
