"""The rows of one model that decode, in groups that step together; and rows that were parked: they
keep their memory, and decode on when they have a place again."""

import math
from collections.abc import Sequence

from worker.engine.caches import blocks_for
from worker.engine.decoding import DecodeGroup, DecodingRow
from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel
from worker.engine.partition import STEPS_TO_PAY_BACK, best_partition, total_cost

_SPARE_SLOTS = 1.5
"""A group that needs more slots gets so many times those it has, so that few joins copy it."""
_NO_ROWS = (0, 0)


class DecodeGroups:
    """Belongs to the engine thread.

    Args:
        max_size: the most rows there will be.

    Attributes:
        groups: the rows that decode.
        parked: each with one row.
        _most: rows of the largest group since nobody decoded, and its width.
        _lately: the same, of the time before that: so many often come again.
    """

    def __init__(self, model: LoadedModel, accounting: KVAccounting, max_size: int) -> None:
        self._model = model
        self._accounting = accounting
        self._max_size = max_size
        self.groups: list[DecodeGroup] = []
        self.parked: list[DecodeGroup] = []
        self._most = _NO_ROWS
        self._lately = _NO_ROWS

    @property
    def rows(self) -> list[DecodingRow]:
        """Those that decode."""
        return [row for group in self.groups for row in group.rows]

    @property
    def all_rows(self) -> list[DecodingRow]:
        """Those that are parked, too."""
        return [row for group in self.all for row in group.rows]

    @property
    def all(self) -> list[DecodeGroup]:
        return [*self.groups, *self.parked]

    @property
    def held_bytes(self) -> int:
        return sum(group.cache.nbytes for group in self.all)

    def drop_empty(self) -> None:
        """Forget groups all of whose rows have left."""
        had_groups = bool(self.groups)
        self.groups = [group for group in self.groups if group.rows]
        self.parked = [group for group in self.parked if group.rows]
        if had_groups and not self.groups:
            self._lately, self._most = self._most, _NO_ROWS

    def join(self, group: DecodeGroup, coming: Sequence[int] = ()) -> None:
        """Have a group decode, one that was parked too.

        Args:
            coming: tokens of each that will join soon: rather than for each anew, room is made
                for all at once.
        """
        if group in self.parked:
            self.parked.remove(group)
        self.groups.append(group)
        self._regroup(coming)
        self._most = max(self._most, *((len(each), each.cache.width) for each in self.groups))
        self._accounting.lend_rest()

    @property
    def parkable(self) -> list[DecodingRow]:
        """Those that decode and can be moved out of their group: there is room for a copy."""
        return [
            row
            for group in self.groups
            for row in group.rows
            if len(group.rows) == 1 or self._accounting.fits(group.bytes_of([row]))
        ]

    def park(self, row: DecodingRow) -> None:
        """Have a parkable row decode no further for now."""
        group = next(group for group in self.groups if row in group.rows)
        if len(group.rows) == 1:
            self.groups.remove(group)
        else:
            group = group.take([row])
        self.parked.append(group)

    # Which rows decode together.

    def _regroup(self, coming: Sequence[int]) -> None:
        """Let rows decode together in the cheapest way, where moving them pays soon."""
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
                self._gather([placed[i][1] for i in part], home, coming)
            self.groups = [group for group in self.groups if group.rows]

    def _gather(
        self,
        rows: Sequence[DecodingRow],
        home: DecodeGroup | None,
        coming: Sequence[int] = (),
    ) -> None:
        """Bring rows together in their new home, as far as there is room for copies."""
        for group in [group for group in self.groups if group is not home]:
            moving = [row for row in group.rows if row in rows]
            if not moving:
                continue
            if len(moving) == len(group.rows):
                leaving = group
            elif self._accounting.fits(group.bytes_of(moving)):
                leaving = group.take(moving)
                self.groups.append(leaving)
            else:
                continue
            if home is None:
                home = leaving
            elif self._widen(home, leaving, coming):
                home.absorb(leaving)
                self.groups.remove(leaving)

    def _widen(self, home: DecodeGroup, joining: DecodeGroup, coming: Sequence[int]) -> bool:
        """Have room in a group for another; with some to spare where memory allows."""
        cache = home.cache
        count = len(home) + len(joining)
        width = max(cache.width, joining.fitting[1])
        alike = count + sum(2 * blocks_for(tokens) >= width for tokens in coming)
        lately, width_then = self._lately
        if 2 * width_then < width:
            lately = 0
        spare = max(alike, lately, math.ceil(cache.slots * _SPARE_SLOTS))
        most = max(count, min(self._max_size, spare))
        for slots in (cache.slots,) if count <= cache.slots else (most, count):
            grown = cache.bytes_at(slots, width) - cache.nbytes
            if grown <= 0 or self._accounting.fits(grown + cache.layer_bytes):
                cache.resize(slots, width)
                return True
        return False


def _homes(
    parts: Sequence[Sequence[tuple[DecodeGroup, int]]],
) -> list[DecodeGroup | None]:
    """For each part, rows by their group and length, the group that most of it is in already,
    unless that is another part's home."""
    homes: list[DecodeGroup | None] = []
    for part in parts:
        held: dict[DecodeGroup, int] = {}
        for group, length in part:
            if group not in homes:
                held[group] = held.get(group, 0) + length
        homes.append(max(held, key=held.__getitem__, default=None))
    return homes
