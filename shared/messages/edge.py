"""The base of what comes from outside."""

from pydantic import BaseModel, ConfigDict


class Edge(BaseModel):
    """Strict, and unknown fields are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, serialize_by_alias=True
    )
