"""The base of what comes from outside."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Edge(BaseModel):
    """Strict, and unknown fields are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, serialize_by_alias=True
    )


TemplateValues = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], Any],
    Field(max_length=64),
]
"""What a chat template is given beyond messages and tools."""
