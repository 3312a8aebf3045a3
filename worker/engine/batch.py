"""Continuous batching of one model: prompts wait, are prefilled, and decode in groups.

Sequences join and leave between any two steps.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from shared.ids import ModelId
from worker.engine.adaptive_batch_size import AdaptiveBatchSize
from worker.engine.decoding import DecodeGroup, DecodingRow
from worker.engine.ledger import Claim, KVLedger
from worker.engine.model import LoadedModel
from worker.engine.partition import STEPS_TO_PAY_BACK, best_partition, total_cost
from worker.engine.prefill import Pending, PrefillJob, Progress
from worker.engine.prompt import PreparedSequence
from worker.engine.turns import Turns
from worker.link.messages import BatchMeasured

_STRETCH = 40.0
"""A prompt is due after so many times the time it takes alone: short ones go before long ones,
but not for ever."""

_HEAD_START_S = 10.0
"""And so much later for each priority below high: such a prompt goes before what comes later."""

_MIN_CHUNK_TOKENS = 8
_WORTH_SHARING = 4
"""Prompts of up to so many times the tokens that the fixed part of a pass is worth go together."""

_SPARE_SLOTS = 1.5
"""A group that needs more slots gets so many times those it has, so that few joins copy it."""


class Batch:
    """All sequences of one model. Every method belongs to the engine thread.

    Attributes:
        groups: the rows that decode.
        turns: whose step is next among them.
        turn: of this model among those of the engine.
        adaptive: keeps the number of rows below `max_size` where steps take long.
    """

    def __init__(
        self,
        model: LoadedModel,
        ledger: KVLedger,
        *,
        max_size: int,
        max_chunk_tokens: int,
        adaptive: AdaptiveBatchSize | None = None,
    ) -> None:
        self._model = model
        self._ledger = ledger
        self._max_size = max_size
        self.adaptive = adaptive
        self._max_chunk_tokens = max_chunk_tokens
        self._pending: list[Pending] = []
        self._jobs: list[PrefillJob] = []
        self.groups: list[DecodeGroup] = []
        self.turns = Turns()
        self.turn = 0.0
        self.preempted: list[int] = []
        ledger.open(self)

    def close(self) -> None:
        self._ledger.close(self)

    # Sequences.

    def add(self, prepared: PreparedSequence) -> None:
        """Queue a sequence for prefill."""
        now = time.monotonic()
        alone_s = self._model.prefill_speed.seconds(len(prepared.all_ids))
        due_at = now + _STRETCH * alone_s + _HEAD_START_S * prepared.order.priority
        self._pending.append(Pending(prepared, now, due_at))

    def remove(self, sequence: int) -> None:
        """Generate no more of a sequence; unknown ones are ignored."""
        self._pending = [each for each in self._pending if each.id != sequence]
        for job in self._jobs:
            job.remove(sequence)
        self._jobs = [job for job in self._jobs if job.pending]
        for row in self._rows:
            row.gone = row.gone or row.id == sequence

    def retire(self) -> None:
        """Drop the rows that ended, or have all their tokens drawn."""
        for group in self.groups:
            group.drop([row for row in group.rows if row.gone or row.left == 0])
        self.groups = [group for group in self.groups if group.rows]

    def took(self, group: DecodeGroup, seconds: float) -> None:
        """A step of a group took so long; a token of each row takes as long as a step of every
        group."""
        group.took(seconds)
        self.turns.took(group, group.step_s)
        if self.adaptive is not None:
            others_s = sum(other.step_s for other in self.groups if other is not group)
            now = time.monotonic()
            self.adaptive.stepped(seconds + others_s, len(self._rows), len(self._pending), now)

    def __len__(self) -> int:
        """Sequences that use the device."""
        return len(self._rows) + self._prefilling

    def measured(self, model: ModelId, now: float) -> BatchMeasured:
        """The present state, for people."""
        steps_s = sum(group.step_s for group in self.groups)
        adaptive = self.adaptive
        return BatchMeasured(
            model,
            rows=len(self._rows),
            waiting=len(self._pending) + self._prefilling,
            limit=adaptive.limit if adaptive else self._max_size,
            step_ms=round(1000 * ((adaptive and adaptive.latency_s) or steps_s), 1),
            stability=round(adaptive.stability, 3) if adaptive else 1.0,
            changes=[change.as_json(now) for change in adaptive.changes] if adaptive else [],
        )

    @property
    def _rows(self) -> list[DecodingRow]:
        return [row for group in self.groups for row in group.rows]

    # Prefill.

    @property
    def next_due(self) -> float | None:
        """When the prompt is due that may be prefilled next; None if there is none."""
        first = self._next_in_turn()
        return first.due_at if first is not None else None

    def prefill(self, seconds: float) -> list[Progress]:
        """Prefill a chunk that takes about so long, and never nothing, of what is due first; rows
        that are complete begin to decode."""
        first = self._next_in_turn()
        assert first is not None
        job = self._open_job(first, seconds) if isinstance(first, Pending) else first
        rows = len(job.pending)
        wanted = self._model.prefill_speed.tokens_in(seconds, job.done) // rows
        count = min(max(wanted, _MIN_CHUNK_TOKENS), self._max_chunk_tokens // rows, job.left)
        context, tokens = job.done, count * rows
        took_s = job.advance(count)
        if tokens >= _MIN_CHUNK_TOKENS:
            self._model.prefill_speed.measured(tokens, context, took_s)
        if job.complete:
            self._jobs.remove(job)
            self._join(job)
        return job.progress()

    def prefill_pays(self, seconds: float) -> bool:
        """Whether so much time holds a chunk that is worth its pass: the rest of what is due
        first, or as much as the fixed part of a pass."""
        first, speed = self._next_in_turn(), self._model.prefill_speed
        assert first is not None
        if isinstance(first, Pending):
            context, left, rows = 0, first.tokens - 1, 1
        else:
            context, left, rows = first.done, first.left, len(first.pending)
        worth = max(_MIN_CHUNK_TOKENS, speed.floor_tokens // rows)
        return speed.tokens_in(seconds, context) // rows >= min(left, worth)

    def _next_in_turn(self) -> PrefillJob | Pending | None:
        """What is due first: a job that has begun, or a prompt that may begin."""
        job = min(self._jobs, key=lambda job: job.due_at, default=None)
        pending = self._admissible()
        if job is None or (pending is not None and pending.due_at < job.due_at):
            return pending
        return job

    def _admissible(self) -> Pending | None:
        """The one that is due first, if there is room for it."""
        first = min(self._pending, key=lambda each: each.due_at, default=None)
        if first is None or self._room_for(first) < 1:
            return None
        size = self._model.layout.bytes(1, first.tokens)
        return first if self._ledger.admits(size) else None

    @property
    def _prefilling(self) -> int:
        return sum(len(job.pending) for job in self._jobs)

    def _room_for(self, pending: Pending) -> int:
        """How many more may decode; high priority does not wait for steps to become faster."""
        urgent = pending.prepared.order.priority == 0
        limit = self._max_size if self.adaptive is None or urgent else self.adaptive.limit
        return limit - len(self)

    def _open_job(self, first: Pending, seconds: float) -> PrefillJob:
        """The first, and others as far as they share a pass with profit."""
        speed, layout = self._model.prefill_speed, self._model.layout
        most_tokens = min(speed.tokens_in(seconds, 0), self._max_chunk_tokens)
        padding = speed.floor_tokens if layout.allows_padding else 0
        chosen = [first]
        longest = first.tokens
        for each in sorted(self._pending, key=lambda each: each.due_at):
            if longest > _WORTH_SHARING * speed.floor_tokens:
                break
            if each is first or abs(each.tokens - first.tokens) > padding:
                continue
            longest_then = max(longest, each.tokens)
            rows = len(chosen) + 1
            fits = rows <= self._room_for(each) and rows * longest_then <= most_tokens
            if fits and self._ledger.has_room(layout.bytes(rows, longest_then)):
                chosen.append(each)
                longest = longest_then
        self._pending = [each for each in self._pending if each not in chosen]
        job = PrefillJob(self._model.network, layout, chosen)
        self._jobs.append(job)
        return job

    # Groups.

    def _join(self, job: PrefillJob) -> None:
        rows = [self._row(pending) for pending in job.pending]
        inputs = mx.array(job.inputs, dtype=mx.uint32)
        self.groups.append(DecodeGroup(self._model.network, rows, job.hand_over(), inputs))
        self._regroup()

    def _row(self, pending: Pending) -> DecodingRow:
        stop_token_ids = pending.prepared.order.stop_token_ids
        return DecodingRow(pending, self._model.end_ids | set(stop_token_ids))

    def _regroup(self) -> None:
        """Let rows decode together in the cheapest way, where moving them pays soon."""
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
            job.reserved_bytes for job in self._jobs
        )

    @property
    def growth_bytes(self) -> int:
        return sum(group.growth_bytes for group in self.groups)

    @property
    def claims(self) -> list[Claim]:
        pending = [row.pending for row in self._rows]
        pending += [each for job in self._jobs for each in job.pending]
        return [Claim(each.prepared.order.priority, each.arrived_at, each.id) for each in pending]

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
        for job in self._jobs:
            for pending in [each for each in job.pending if each.id == sequence]:
                job.remove(sequence)
                self._give_way(pending)
        self._jobs = [job for job in self._jobs if job.pending]
        for group in self.groups:
            for row in [row for row in group.rows if row.id == sequence]:
                row.gone = True
                group.drop([row])
                if group.rows:
                    group.fit()
                resumed = row.pending.prepared.resumed(row.answer_ids)
                self._give_way(replace(row.pending, prepared=resumed))
        self.groups = [group for group in self.groups if group.rows]

    def _give_way(self, pending: Pending) -> None:
        self._pending.append(pending)
        self.preempted.append(pending.id)


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
