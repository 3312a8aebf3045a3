"""Which group steps next: device time in proportion to the square root of a group's rows.

A group that gets the share s of the time is 1/s times slower than alone. Of all shares those
proportional to sqrt(rows) make the sum of this slowdown over all rows least: one long row
beside seven short ones takes 27 % of the time, not half of it. The order is that of stride
scheduling (Waldspurger and Weihl, 1995).
"""

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar


class TakesTurns(Protocol):
    """Attributes:
    turn: the group with the lowest is next.
    """

    turn: float

    def __len__(self) -> int: ...


G = TypeVar("G", bound=TakesTurns)


class Turns:
    """The order of all groups of an engine."""

    def __init__(self) -> None:
        self._now = 0.0

    def next(self, groups: Sequence[G]) -> G:
        """The group that steps next; one that was away does not catch up."""
        for group in groups:
            group.turn = max(group.turn, self._now)
        chosen = min(groups, key=lambda group: group.turn)
        self._now = chosen.turn
        return chosen

    def took(self, group: TakesTurns, seconds: float) -> None:
        """A step of a group took so long."""
        group.turn += seconds / math.sqrt(max(1, len(group)))
