"""Types that the messages share."""

from typing import Annotated, Literal

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]

MAX_TERM = 2**31
Term = Annotated[int, Field(ge=0, le=MAX_TERM)]
"""A term of a leader. The bound keeps attempt numbers (1,000 a term) exact in every JSON parser."""
Attempt = Annotated[int, Field(ge=-1, lt=2**53)]
"""The number of an attempt of a request; -1 stands for any."""
ShortName = Annotated[str, Field(max_length=256)]
"""What a client calls something of its own or of a machine."""


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
