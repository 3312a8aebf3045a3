"""Tools and items of OpenAI's own service: taken, shown and listed again, and nothing else."""

from typing import Annotated, Any, Self

import orjson
from pydantic import AfterValidator, Field, model_validator

from shared.external_model import ExternalModel


def _plain(value: Any) -> Any:
    """Raises ValueError for what JSON as others read it cannot say."""
    try:
        orjson.dumps(value)
    except TypeError:
        raise ValueError("it holds a number beyond 64 bits") from None
    return value


PlainObject = Annotated[dict[str, Any], AfterValidator(_plain)]
PlainList = Annotated[list[Any], Field(fail_fast=True), AfterValidator(_plain)]


class PassthroughItem(ExternalModel, extra="allow"):
    """Of a type that is not served, with whatever belongs to it."""

    type: Annotated[str, Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        _plain(self.__pydantic_extra__)
        return self
