"""Continuous batching of one model: prompts wait, are prefilled, and decode in groups.

Sequences join and leave between any two steps.
"""

import math
import time
from collections.abc import Sequence

import mlx.core as mx

from shared.ids import ModelId
from worker.engine.adaptive_batch_size import AdaptiveBatchSize
from worker.engine.decoding import DecodeGroup, DecodingRow
from worker.engine.ledger import Claim, KVLedger
from worker.engine.model import LoadedModel
from worker.engine.partition import STEPS_TO_PAY_BACK, best_partition, total_cost
from worker.engine.prefill import PrefillJob, PrefillRow, Progress
from worker.engine.prefilling import Prefilling
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.engine.turns import Turns
from worker.link.messages import BatchMeasured

_SPARE_SLOTS = 1.5
"""A group that needs more slots gets so many times those it has, so that few joins copy it."""


class Batch:
    """All sequences of one model. Every method belongs to the engine thread.

    Attributes:
        groups: the rows that decode.
        turns: whose step is next among them.
        turn: of this model among those of the engine.
        preempted: sequences that gave way since somebody looked.
        adaptive: keeps the number of rows below `max_size` where steps take long.
        kept: what is kept of texts; None where nothing is.
    """

    def __init__(
        self,
        model: LoadedModel,
        ledger: KVLedger,
        *,
        max_size: int,
        max_chunk_tokens: int,
        adaptive: AdaptiveBatchSize | None = None,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        """Without a `prefix_cache` nothing is kept."""
        self._model = model
        self.kept = prefix_cache
        self._ledger = ledger
        self._max_size = max_size
        self.adaptive = adaptive
        self._prompts = Prefilling(
            model, ledger, prefix_cache, max_chunk_tokens=max_chunk_tokens, room=self._room
        )
        self.groups: list[DecodeGroup] = []
        self.turns = Turns()
        self.turn = 0.0
        self.preempted: list[int] = []
        self._leaving: list[DecodingRow] = []
        ledger.open(self)

    def close(self) -> None:
        self._ledger.close(self)
        self._prompts.close()
        if self.kept is not None:
            self.kept.close()

    # Sequences.

    def add(self, prepared: PreparedSequence) -> None:
        """Queue a sequence for prefill."""
        self._prompts.add(prepared)

    def remove(self, sequence: int) -> None:
        """Generate no more of a sequence; unknown ones are ignored."""
        self._prompts.remove(sequence)
        for row in [*self._rows, *self._leaving]:
            row.gone = row.gone or row.id == sequence

    def retire(self) -> None:
        """Drop the rows that ended, or have all their tokens drawn."""
        for group in self.groups:
            leaving = [row for row in group.rows if row.gone or row.left == 0]
            if leaving:
                group.keep_rest(leaving)
                group.drop(leaving)
                self._leaving += leaving
        self.groups = [group for group in self.groups if group.rows]
        if self._leaving:
            self._ledger.lend_rest()
            self._leaving = [row for row in self._leaving if not row.settle()]

    def took(self, group: DecodeGroup, seconds: float) -> None:
        """A step of a group took so long; a token of each row takes as long as a step of every
        group."""
        group.took(seconds)
        self.turns.took(group, group.step_s)
        if self.adaptive is not None:
            others_s = sum(other.step_s for other in self.groups if other is not group)
            now = time.monotonic()
            waiting = len(self._prompts.pending)
            self.adaptive.stepped(seconds + others_s, len(self._rows), waiting, now)

    def __len__(self) -> int:
        """Sequences that use the device."""
        return len(self._rows) + len(self._prompts)

    def measured(self, model: ModelId, now: float) -> BatchMeasured:
        """The present state, for people."""
        steps_s = sum(group.step_s for group in self.groups)
        adaptive, rows = self.adaptive, len(self._rows)
        next_s = adaptive.step_s(min(rows + 1, adaptive.limit)) if adaptive else 0.0
        return BatchMeasured(
            model,
            rows=rows,
            waiting=len(self._prompts.pending) + len(self._prompts),
            limit=adaptive.limit if adaptive else self._max_size,
            step_ms=round(1000 * ((adaptive and adaptive.latency_s) or steps_s), 1),
            stability=round(adaptive.stability, 3) if adaptive else 1.0,
            changes=[change.as_json(now) for change in adaptive.changes] if adaptive else [],
            next_step_ms=round(1000 * (next_s or steps_s), 1),
            prefill_tokens_per_s=round(self._model.prefill_speed.tokens_per_s, 1),
        )

    @property
    def _rows(self) -> list[DecodingRow]:
        return [row for group in self.groups for row in group.rows]

    # Prefill.

    @property
    def next_due(self) -> float | None:
        """When the prompt is due that may be prefilled next; None if there is none."""
        return self._prompts.next_due

    def prefill(self, seconds: float) -> list[Progress]:
        """Prefill a chunk that takes about so long, and never nothing, of what is due first; rows
        that are complete begin to decode."""
        job = self._prompts.advance(seconds)
        if job.complete:
            self._join(job)
        return job.progress()

    def prefill_pays(self, seconds: float) -> bool:
        """Whether so much time holds a chunk of what is due first that is worth its pass."""
        return self._prompts.pays(seconds)

    def take_restored(self) -> list[tuple[int, int]]:
        """Sequences and how many of their tokens were kept, since this was asked last."""
        restored, self._prompts.restored = self._prompts.restored, []
        return restored

    def _room(self, urgent: bool) -> int:
        """How many more may decode; high priority does not wait for steps to become faster."""
        limit = self._max_size if self.adaptive is None or urgent else self.adaptive.limit
        return limit - len(self)

    # Groups.

    def _join(self, job: PrefillJob) -> None:
        rows = [self._row(row) for row in job.rows]
        inputs = mx.array(job.inputs, dtype=mx.uint32)
        self.groups.append(DecodeGroup(self._model.network, rows, job.hand_over(), inputs))
        self._regroup()

    def _row(self, row: PrefillRow) -> DecodingRow:
        stop_token_ids = row.pending.prepared.order.stop_token_ids
        return DecodingRow(row.pending, self._model.end_ids | set(stop_token_ids), row.trail)

    def _regroup(self) -> None:
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
                self._gather([placed[i][1] for i in part], home)
            self.groups = [group for group in self.groups if group.rows]

    def _gather(self, rows: Sequence[DecodingRow], home: DecodeGroup | None) -> None:
        """Bring rows together in their new home, as far as there is room for copies."""
        for group in [group for group in self.groups if group is not home]:
            moving = [row for row in group.rows if row in rows]
            if not moving:
                continue
            if len(moving) == len(group.rows):
                leaving = group
            elif self._ledger.fits(group.bytes_of(moving)):
                leaving = group.take(moving)
                self.groups.append(leaving)
            else:
                continue
            if home is None:
                home = leaving
            elif self._widen(home, leaving):
                home.absorb(leaving)
                self.groups.remove(leaving)

    def _widen(self, home: DecodeGroup, coming: DecodeGroup) -> bool:
        """Have room in a group for another; with some to spare where memory allows."""
        cache = home.cache
        count = len(home) + len(coming)
        width = max(cache.width, coming.fitting[1])
        spare = min(self._max_size, math.ceil(cache.slots * _SPARE_SLOTS))
        for slots in (cache.slots,) if count <= cache.slots else (max(count, spare), count):
            grown = cache.bytes_at(slots, width) - cache.nbytes
            if grown <= 0 or self._ledger.fits(grown + cache.layer_bytes):
                cache.resize(slots, width)
                return True
        return False

    # Memory.

    @property
    def held_bytes(self) -> int:
        return sum(group.cache.nbytes for group in self.groups) + sum(
            job.reserved_bytes for job in self._prompts.jobs
        )

    @property
    def growth_bytes(self) -> int:
        return sum(group.growth_bytes for group in self.groups)

    @property
    def claims(self) -> list[Claim]:
        pending = [row.pending for row in self._rows]
        pending += [each for job in self._prompts.jobs for each in job.pending]
        return [Claim(each.prepared.order.priority, each.arrived_at, each.id) for each in pending]

    def has_room(self, group: DecodeGroup) -> bool:
        """Whether the next step of a group takes nothing from anybody."""
        return self._ledger.fits(_growth_needed(group))

    def make_room(self, group: DecodeGroup) -> bool:
        """Have room for the next step of a group; False where none of its rows is left."""
        self._ledger.make_room(lambda: _growth_needed(group))
        if group.rows and not group.has_room:
            group.grow()
        return bool(group.rows)

    def give_back_slack(self) -> None:
        for group in self.groups:
            group.fit()

    def preempt(self, sequence: int) -> None:
        """Take a sequence's memory; it is prefilled again later, with what it has generated."""
        if (pending := self._prompts.take_back(sequence)) is not None:
            self._prompts.add_again(pending, pending.prepared)
            self.preempted.append(sequence)
        for group in self.groups:
            for row in [row for row in group.rows if row.id == sequence]:
                row.gone = True
                group.keep_rest([row])
                group.drop([row])
                if group.rows:
                    group.fit()
                self._ledger.lend_rest()
                row.settle()
                self._prompts.add_again(row.pending, row.pending.prepared.resumed(row.answer_ids))
                self.preempted.append(sequence)
        self.groups = [group for group in self.groups if group.rows]


def _growth_needed(group: DecodeGroup) -> int:
    if not group.rows or group.has_room:
        return 0
    return group.growth_bytes


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
