"""Types that the messages share."""

from typing import Annotated, Literal

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]


Priority = Literal["high", "medium", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "medium", "low")
_PRIORITIES: dict[str, Priority] = {
    "high": "high", "urgent": "high",
    "medium": "medium", "default": "medium",
    "low": "low", "background": "low",
}  # fmt: skip
PriorityName = Literal["high", "medium", "low", "urgent", "default", "background"]


def canonical_priority(name: PriorityName) -> Priority:
    """Return the level of a priority name."""
    return _PRIORITIES[name]
