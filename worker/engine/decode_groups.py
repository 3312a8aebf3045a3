"""The decoding rows of one model, in groups that step together, and the parked rows: they keep
their KV cache, and continue when they get a slot again."""

import math
from collections.abc import Iterable, Sequence

from worker.engine.caches import blocks_for
from worker.engine.decoding import DecodeGroup, DecodingRow
from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel

STEPS_TO_PAY_BACK = 32
"""Moving rows must pay off within this number of steps."""


def step_cost(group: Sequence[int], pass_cost: float, token_cost: float) -> float:
    """Return the cost of one step of a group.

    Args:
        group: the lengths of its rows, in tokens.
        pass_cost: the cost of reading the weights.
        token_cost: the cost of reading keys and values of one token, in the same unit, such as
            bytes.
    """
    return pass_cost + len(group) * max(group) * token_cost if group else 0.0


def best_partition(lengths: Sequence[int], pass_cost: float, token_cost: float) -> list[list[int]]:
    """Return the partition with the lowest total cost of a step, as row indices of each group; the
    shortest rows first. Takes O(rows²) time."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    best = [0.0]
    begins: list[int] = []
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        costs = [
            best[begin] + pass_cost + (end - begin) * longest * token_cost for begin in range(end)
        ]
        begin = min(range(end), key=costs.__getitem__)
        best.append(costs[begin])
        begins.append(begin)
    groups: list[list[int]] = []
    end = len(order)
    while end:
        groups.append(order[begins[end - 1] : end])
        end = begins[end - 1]
    return groups[::-1]


def total_cost(groups: Iterable[Sequence[int]], pass_cost: float, token_cost: float) -> float:
    """Return the cost of one step of every group."""
    return sum(step_cost(group, pass_cost, token_cost) for group in groups)


_SPARE_SLOTS = 1.5
"""A group that needs more slots grows by this factor, so that few joins copy its cache."""
_NO_ROWS = (0, 0)


class DecodeGroups:
    """Belongs to the engine thread.

    Args:
        max_size: the maximum number of rows.

    Attributes:
        groups: the groups that decode.
        parked: groups of one row each.
        _largest: rows and width of the largest group since decoding last paused.
        _previous_largest: the same for the period before, as a forecast of the slots needed.
    """

    def __init__(self, model: LoadedModel, accounting: KVAccounting, max_size: int) -> None:
        self._model = model
        self._accounting = accounting
        self._max_size = max_size
        self.groups: list[DecodeGroup] = []
        self.parked: list[DecodeGroup] = []
        self._largest = _NO_ROWS
        self._previous_largest = _NO_ROWS

    @property
    def rows(self) -> list[DecodingRow]:
        """The rows that decode."""
        return [row for group in self.groups for row in group.rows]

    @property
    def all_rows(self) -> list[DecodingRow]:
        """The rows that decode, and the parked ones."""
        return [row for group in self.all for row in group.rows]

    @property
    def all(self) -> list[DecodeGroup]:
        return [*self.groups, *self.parked]

    @property
    def held_bytes(self) -> int:
        return sum(group.cache.nbytes for group in self.all)

    def drop_empty(self) -> None:
        """Remove groups without rows."""
        had_groups = bool(self.groups)
        self.groups = [group for group in self.groups if group.rows]
        self.parked = [group for group in self.parked if group.rows]
        if had_groups and not self.groups:
            self._previous_largest, self._largest = self._largest, _NO_ROWS

    def join(self, group: DecodeGroup, upcoming: Sequence[int] = ()) -> None:
        """Start decoding a group, new or parked.

        Args:
            upcoming: the tokens of each sequence that will join soon: capacity is allocated for all
                of them at once.
        """
        if group in self.parked:
            self.parked.remove(group)
        self.groups.append(group)
        self._regroup(upcoming)
        self._largest = max(self._largest, *((len(each), each.cache.width) for each in self.groups))
        self._accounting.lend_rest()

    @property
    def parkable(self) -> list[DecodingRow]:
        """The decoding rows that can leave their group: alone, or with free memory for a copy."""
        return [
            row
            for group in self.groups
            for row in group.rows
            if len(group.rows) == 1 or self._accounting.fits(group.bytes_of([row]))
        ]

    def park(self, row: DecodingRow) -> None:
        """Pause a parkable row; it keeps its KV cache."""
        group = next(group for group in self.groups if row in group.rows)
        if len(group.rows) == 1:
            self.groups.remove(group)
        else:
            group = group.take([row])
        self.parked.append(group)

    # Which rows decode together.

    def _regroup(self, upcoming: Sequence[int]) -> None:
        """Move rows to the cheapest partition into groups, if the saved reads soon outweigh the
        copies."""
        if not self._model.layout.allows_batching:
            return
        pass_cost, token_cost = self._model.memory_bytes, self._model.layout.token_bytes
        placed = [(group, row) for group in self.groups for row in group.rows]
        lengths = [length for group in self.groups for length in group.lengths]
        parts = best_partition(lengths, pass_cost, token_cost)
        now = total_cost([group.lengths for group in self.groups], pass_cost, token_cost)
        best = total_cost([[lengths[i] for i in part] for part in parts], pass_cost, token_cost)
        homes = _homes([[(placed[i][0], lengths[i]) for i in part] for part in parts])
        moved = sum(
            lengths[i]
            for part, home in zip(parts, homes, strict=True)
            for i in part
            if placed[i][0] is not home
        )
        if (now - best) * STEPS_TO_PAY_BACK > 2 * moved * token_cost:
            for part, home in zip(parts, homes, strict=True):
                self._gather([placed[i][1] for i in part], home, upcoming)
            self.groups = [group for group in self.groups if group.rows]

    def _gather(
        self,
        rows: Sequence[DecodingRow],
        home: DecodeGroup | None,
        upcoming: Sequence[int] = (),
    ) -> None:
        """Move rows into one group, as far as memory for the copies is free.

        Args:
            home: the group that receives the rows; None to make a new one.
        """
        for group in [group for group in self.groups if group is not home]:
            moving = [row for row in group.rows if row in rows]
            if not moving:
                continue
            if len(moving) == len(group.rows):
                source = group
            elif self._accounting.fits(group.bytes_of(moving)):
                source = group.take(moving)
                self.groups.append(source)
            else:
                continue
            if home is None:
                home = source
            elif self._widen(home, source, upcoming):
                home.absorb(source)
                self.groups.remove(source)

    def _widen(self, home: DecodeGroup, joining: DecodeGroup, upcoming: Sequence[int]) -> bool:
        """Allocate capacity in a group for another group, with spare slots if memory allows; False
        if it does not fit."""
        cache = home.cache
        count = len(home) + len(joining)
        width = max(cache.width, joining.required_size[1])
        expected = count + sum(2 * blocks_for(tokens) >= width for tokens in upcoming)
        previous_rows, previous_width = self._previous_largest
        if 2 * previous_width < width:
            previous_rows = 0
        spare = max(expected, previous_rows, math.ceil(cache.slots * _SPARE_SLOTS))
        generous = max(count, min(self._max_size, spare))
        for slots in (cache.slots,) if count <= cache.slots else (generous, count):
            grown = cache.bytes_at(slots, width) - cache.nbytes
            if grown <= 0 or self._accounting.fits(grown + cache.layer_bytes):
                cache.resize(slots, width)
                return True
        return False


def _homes(
    parts: Sequence[Sequence[tuple[DecodeGroup, int]]],
) -> list[DecodeGroup | None]:
    """Return for each part of a partition the group that holds most of its tokens, if that group is
    not yet the home of another part. A part lists the group and the length of each row."""
    homes: list[DecodeGroup | None] = []
    for part in parts:
        held: dict[DecodeGroup, int] = {}
        for group, length in part:
            if group not in homes:
                held[group] = held.get(group, 0) + length
        homes.append(max(held, key=held.__getitem__, default=None))
    return homes
