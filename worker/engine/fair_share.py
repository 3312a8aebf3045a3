"""Who gets the device next: time in proportion to the square root of the rows, among the models
of an engine, and among the groups of a model.

A group that gets the share s of the time is 1/s times slower than alone. Of all shares those
proportional to sqrt(rows) make the sum of this slowdown over all rows least: one long row
beside seven short ones takes 27 % of the time, not half of it. The order is that of stride
scheduling (Waldspurger and Weihl, 1995).
"""

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Schedulable(Protocol):
    """A group of rows, or all of a model.

    Attributes:
        turn: the one with the lowest is next.
    """

    turn: float

    def __len__(self) -> int: ...


G = TypeVar("G", bound=Schedulable)


class FairShare:
    """The order of those who share the device.

    Args:
        longest_debt_s: who took more than that at a time, for a long prompt, does not wait for
            the others to have had as much.
    """

    def __init__(self, *, longest_debt_s: float = math.inf) -> None:
        self._longest_debt_s = longest_debt_s
        self._now = 0.0

    def next(self, groups: Sequence[G]) -> G:
        """The group that steps next; one that was away does not catch up."""
        for group in groups:
            group.turn = max(group.turn, self._now)
        chosen = min(groups, key=lambda group: group.turn)
        self._now = chosen.turn
        return chosen

    def took(self, group: Schedulable, seconds: float) -> None:
        """A group had the device for so long."""
        weight = math.sqrt(max(1, len(group)))
        latest = self._now + self._longest_debt_s / weight
        group.turn = min(group.turn + seconds / weight, max(group.turn, latest))
