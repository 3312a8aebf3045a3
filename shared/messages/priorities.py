"""The priorities of requests."""

from typing import Literal

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
