"""Continuous batching of one model: prompts wait, are prefilled, and decode in groups.

Sequences join and leave between any two steps.
"""

import time
from collections.abc import Callable

import mlx.core as mx

from shared.ids import ModelId
from worker.engine.adaptive_batch_size import AdaptiveBatchSize, TypicalRequest
from worker.engine.decode_groups import DecodeGroups
from worker.engine.decoding import DecodeGroup, DecodingRow
from worker.engine.fair_share import FairShare
from worker.engine.memory_accounting import KVAccounting, PreemptionCandidate
from worker.engine.model import LoadedModel
from worker.engine.prefill import PrefillJob, PrefillProgress, PrefillRow
from worker.engine.prefilling import Prefilling
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.engine.slot_preemption import DecodingSlot, WaitingSequence, row_to_preempt
from worker.engine.step_cost import StepCost
from worker.engine.tokens import Token
from worker.link.facts import BatchMeasured


class Batch:
    """All sequences of one model. Every method belongs to the engine thread.

    Attributes:
        turns: whose step is next among them.
        turn: of this model among those of the engine.
        preempted: sequences that gave way since somebody looked.
        first: tokens that were drawn where prompts were complete, since somebody looked.
        adaptive: keeps the number of rows below `max_size` where steps take long.
        kept: what is kept of texts; None where nothing is.
    """

    def __init__(
        self,
        model: LoadedModel,
        accounting: KVAccounting,
        *,
        max_size: int,
        max_chunk_tokens: int,
        adaptive: AdaptiveBatchSize | None = None,
        prefix_cache: PrefixCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a `prefix_cache` nothing is kept."""
        self._model = model
        self.kept = prefix_cache
        self._accounting = accounting
        self._max_size = max_size
        self.adaptive = adaptive
        self._clock = clock
        self._prompts = Prefilling(
            model, accounting, prefix_cache, max_chunk_tokens=max_chunk_tokens, room=self._room,
            clock=clock,
        )  # fmt: skip
        self._cost = adaptive.cost if adaptive else StepCost()
        self._usual = adaptive.usual if adaptive else TypicalRequest()
        self._decoding = DecodeGroups(model, accounting, max_size)
        self.turns = FairShare()
        self.turn = 0.0
        self.preempted: list[int] = []
        self.first: list[Token] = []
        self._leaving: list[DecodingRow] = []
        accounting.open(self)

    @property
    def groups(self) -> list[DecodeGroup]:
        """The rows that decode."""
        return self._decoding.groups

    def close(self) -> None:
        self._accounting.close(self)
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
        for row in [*self._decoding.all_rows, *self._leaving]:
            row.gone = row.gone or row.id == sequence

    def retire(self) -> None:
        """Drop the rows that ended, or have all their tokens drawn."""
        for group in self._decoding.all:
            leaving = [row for row in group.rows if row.gone or row.left == 0]
            if leaving:
                for row in leaving:
                    if not row.pending.prepared.order.is_trial:
                        self._usual.answered(row.pending.prefill_s, len(row.answer_ids))
                group.keep_rest(leaving)
                group.drop(leaving)
                self._leaving += leaving
        self._decoding.drop_empty()
        if self._leaving:
            self._accounting.lend_rest()
            self._leaving = [row for row in self._leaving if not row.settle()]

    def took(self, group: DecodeGroup, rows: int, seconds: float) -> None:
        """A step of a group took so long, of so many rows: some may have left since. A token of
        each row takes as long as a step of every group."""
        group.took(seconds)
        self.turns.took(group, group.step_s)
        others = [other for other in self.groups if other is not group]
        seconds += sum(other.step_s for other in others)
        rows += sum(len(other) for other in others)
        if self.adaptive is None:
            self._cost.stepped(rows, seconds)
        else:
            ready = self._prompts.ready_rows + len(self._decoding.parked)
            waiting = len(self._prompts.pending) + ready
            self.adaptive.stepped(seconds, rows, waiting, self._clock())

    @property
    def step_s(self) -> float:
        """What a step of every group takes, or will take as far as is known."""
        line = self._cost.line
        return sum(group.step_s or line.seconds(len(group)) for group in self.groups)

    def __len__(self) -> int:
        """Sequences that have memory."""
        return len(self._decoding.all_rows) + len(self._prompts)

    def measured(self, model: ModelId, now: float) -> BatchMeasured:
        """The present state, for people."""
        steps_s = sum(group.step_s for group in self.groups)
        adaptive, rows = self.adaptive, len(self._decoding.rows)
        next_s = adaptive.step_s(min(rows + 1, adaptive.limit)) if adaptive else 0.0
        line = self._cost.hopeful(max(1, rows))
        return BatchMeasured(
            model,
            rows=rows,
            waiting=len(self._prompts.pending) + len(self._prompts) + len(self._decoding.parked),
            limit=adaptive.limit if adaptive else self._max_size,
            step_ms=round(1000 * ((adaptive and adaptive.latency_s) or steps_s), 1),
            stability=round(adaptive.stability, 3) if adaptive else 1.0,
            changes=[change.as_json(now) for change in adaptive.changes] if adaptive else [],
            next_step_ms=round(1000 * (next_s or steps_s), 1),
            prefill_tokens_per_s=round(self._model.prefill_speed.tokens_per_s, 1),
            step_fixed_ms=round(1000 * line.fixed_s, 3),
            step_row_ms=round(1000 * max(0.0, line.each_s), 3),
        )

    # Prefill.

    @property
    def next_due(self) -> float | None:
        """When the prompt is due that may be prefilled next; None if there is none."""
        return self._prompts.next_due

    @property
    def waiting_prefill_s(self) -> float:
        """What the prefill of those that wait will take, if each is alone."""
        return sum(self._prompts.seconds(each) for each in self._prompts.pending)

    def prefill(
        self, seconds: float, begins: Callable[[list[int]], None] = lambda _: None
    ) -> list[PrefillProgress]:
        """Prefill a chunk that takes about so long, and never nothing, of what is due first; rows
        that are complete begin to decode, if there is a place. `begins` hears which sequences
        the pass is for, before the network does."""
        job = self._prompts.advance(seconds, begins, alone=not self._decoding.rows)
        self.join()
        return job.progress()

    def prefill_pays(self, seconds: float) -> bool:
        """Whether so much time holds a chunk of what is due first that is worth its pass."""
        return self._prompts.pays(seconds)

    def take_restored(self) -> list[tuple[int, int]]:
        """Sequences and how many of their tokens were kept, since this was asked last."""
        restored, self._prompts.restored = self._prompts.restored, []
        return restored

    def _room(self, urgent: bool) -> int:
        """How many more prompts may begin: a place is taken by what decodes, or could."""
        return self._places(urgent) - len(self._decoding.rows) - self._prompts.ready_rows

    # Places among the rows that decode.

    def _places(self, urgent: bool) -> int:
        """High priority does not wait for steps to become faster."""
        return self._max_size if self.adaptive is None or urgent else self.adaptive.limit

    @property
    def can_join(self) -> bool:
        """Whether there is a place for somebody who is ready to decode."""
        return self._next_to_join() is not None

    def join(self) -> None:
        """Let those decode who are ready, as far as there are places, or others give theirs up;
        all tokens that were drawn must have been read. Some may have ended with their `first`
        token: call `retire`."""
        while (found := self._next_to_join()) is not None:
            ready, row = found
            if row is not None:
                self._decoding.park(row)
            if isinstance(ready, PrefillJob):
                self._prompts.jobs.remove(ready)
                ready.keep_rest()  # where the last one to be prefilled was cancelled
                ready = self._decoding_group(ready)
            for each in ready.rows:
                each.since = self._clock()
            self._decoding.join(ready, self._prompts.coming)

    def _decoding_group(self, job: PrefillJob) -> DecodeGroup:
        """Of a job that is complete; its first tokens are drawn where their logits are there."""
        rows, logits = [self._row(each) for each in job.rows], job.logits
        inputs = mx.array(job.inputs, dtype=mx.uint32)
        group = DecodeGroup(self._model.network, rows, job.release_caches(), inputs)
        if logits is not None:
            self.first += group.sample_from(logits).read()
        return group

    def _next_to_join(self) -> tuple[PrefillJob | DecodeGroup, DecodingRow | None] | None:
        """The sequence that is due first of those that can have a slot, and the row that is
        preempted for it, if any. Of a job with several sequences only the first needs a free slot:
        when the job began, there were slots for all."""
        ready: list[PrefillJob | DecodeGroup] = [*self._prompts.complete, *self._decoding.parked]
        if not ready:
            return None
        step_s = self._cost.line.seconds(max(1, len(self._decoding.rows)))
        parkable = self._decoding.parkable
        placed = [DecodingSlot(row.priority, row.since, row.left * step_s) for row in parkable]
        for each in sorted(ready, key=_due_at):
            waiting = self._waiting(each, step_s)
            if self._places(waiting.priority == 0) > len(self._decoding.rows):
                return each, None
            if (index := row_to_preempt(waiting, placed, self._clock())) is not None:
                return each, parkable[index]
        return None

    def _waiting(self, ready: PrefillJob | DecodeGroup, step_s: float) -> WaitingSequence:
        """How it looks to those that decode. A row that was parked has had its turn: all that it
        may still generate counts."""
        if isinstance(ready, DecodeGroup):
            (row,) = ready.rows
            return WaitingSequence(row.pending.overdue_at, row.priority, row.left * step_s)
        pending = ready.pending
        order = pending[0].prepared.order
        left = pending[0].prepared.max_tokens - len(order.answer_ids)
        return WaitingSequence(
            min(each.overdue_at for each in pending),
            min(each.prepared.order.priority for each in pending),
            sum(each.prefill_s for each in pending) + min(left, self._usual.answer_tokens) * step_s,
        )

    def _row(self, row: PrefillRow) -> DecodingRow:
        order = row.pending.prepared.order
        own_ends = frozenset() if order.ignore_eos else self._model.end_ids
        return DecodingRow(row.pending, own_ends | set(order.stop_token_ids), row.recorder)

    # Memory.

    @property
    def held_bytes(self) -> int:
        return self._decoding.held_bytes + sum(job.reserved_bytes for job in self._prompts.jobs)

    @property
    def growth_bytes(self) -> int:
        return sum(group.growth_bytes for group in self.groups)

    @property
    def claims(self) -> list[PreemptionCandidate]:
        pending = [row.pending for row in self._decoding.all_rows]
        pending += [each for job in self._prompts.jobs for each in job.pending]
        return [
            PreemptionCandidate(each.prepared.order.priority, each.arrived_at, each.id)
            for each in pending
        ]

    def has_room(self, group: DecodeGroup) -> bool:
        """Whether the next step of a group takes nothing from anybody."""
        return self._accounting.fits(_growth_needed(group))

    def make_room(self, group: DecodeGroup) -> bool:
        """Have room for the next step of a group; False where none of its rows is left."""
        if not group.has_room:
            self._accounting.make_room(lambda: _growth_needed(group))
            if group.rows and not group.has_room:
                group.grow()
        return bool(group.rows)

    def release_slack(self) -> None:
        for group in self._decoding.all:
            group.fit()

    def preempt(self, sequence: int) -> None:
        """Take a sequence's memory; it is prefilled again later, with what it has generated."""
        if (pending := self._prompts.take_back(sequence)) is not None:
            self._prompts.add_again(pending, pending.prepared)
            self.preempted.append(sequence)
        for group in self._decoding.all:
            for row in [row for row in group.rows if row.id == sequence]:
                row.gone = True
                group.keep_rest([row])
                group.drop([row])
                if group.rows:
                    group.fit()
                self._accounting.lend_rest()
                row.settle()
                self._prompts.add_again(row.pending, row.pending.prepared.resumed(row.answer_ids))
                self.preempted.append(sequence)
        self._decoding.drop_empty()


def _due_at(ready: PrefillJob | DecodeGroup) -> float:
    """Of one that was parked as it was before: so it is the next to get a place."""
    if isinstance(ready, DecodeGroup):
        return ready.rows[0].pending.due_at
    return ready.due_at


def _growth_needed(group: DecodeGroup) -> int:
    if not group.rows or group.has_room:
        return 0
    return group.growth_bytes
