"""Base class of models of data from outside the cluster."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class ExternalInput(BaseModel):
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
