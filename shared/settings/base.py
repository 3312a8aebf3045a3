"""Types that the sections of the settings share."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from shared.ids import ModelId

Milliseconds = Annotated[int, Field(ge=0, le=86_400_000)]
PositiveMilliseconds = Annotated[int, Field(ge=1, le=86_400_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
PriorityName = Literal["high", "medium", "low"]
DEMO_MODEL = ModelId("demo")
MAX_ENGINES = 64
IGNORED: dict[str, JsonValue] = {"ignored": True}
"""Marks a setting that has no effect any more; `ignored_settings` reports its uses."""
Model = Annotated[ModelId, Field(min_length=1, max_length=256)]


class SettingsSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
