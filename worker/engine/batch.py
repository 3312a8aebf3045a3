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
from worker.engine.fair_share import FairShareScheduler
from worker.engine.memory_accounting import KVAccounting, PreemptionCandidate
from worker.engine.model import LoadedModel
from worker.engine.prefill import PrefillBatch, PrefillProgress, PrefillRow
from worker.engine.prefill_scheduler import PrefillScheduler
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.engine.sequence import GeneratedToken
from worker.engine.slot_preemption import SlotHolder, SlotWaiter, row_to_preempt
from worker.engine.step_cost import StepCost
from worker.link.facts import BatchMeasurements


class ModelBatch:
    """All sequences of one model. Every method belongs to the engine thread.

    Attributes:
        fair_share: selects the group that steps next.
        virtual_time: of this model among the models of the engine; see `fair_share`.
        preempted: sequences preempted since the caller last emptied the list.
        first_tokens: sampled at the end of prefill, since the caller last emptied the list.
        adaptive: limits the rows to fewer than `max_size` while steps are slow.
        prefix_cache: None if nothing is cached.
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
        self._model = model
        self.prefix_cache = prefix_cache
        self._accounting = accounting
        self._max_size = max_size
        self.adaptive = adaptive
        self._clock = clock
        self._prompts = PrefillScheduler(
            model, accounting, prefix_cache, max_chunk_tokens=max_chunk_tokens,
            free_slots=self._free_slots,
            clock=clock,
        )  # fmt: skip
        self._cost = adaptive.cost if adaptive else StepCost()
        self._typical_request = adaptive.typical_request if adaptive else TypicalRequest()
        self._decoding = DecodeGroups(model, accounting, max_size)
        self.fair_share = FairShareScheduler()
        self.virtual_time = 0.0
        self.preempted: list[int] = []
        self.first_tokens: list[GeneratedToken] = []
        self._retired: list[DecodingRow] = []
        accounting.open(self)

    @property
    def groups(self) -> list[DecodeGroup]:
        """The rows that decode."""
        return self._decoding.groups

    def close(self) -> None:
        self._accounting.close(self)
        self._prompts.close()
        if self.prefix_cache is not None:
            self.prefix_cache.close()

    # Sequences.

    def add(self, prepared: PreparedSequence) -> None:
        """Queue a sequence for prefill."""
        self._prompts.add(prepared)

    def remove(self, sequence: int) -> None:
        """Stop generating a sequence; unknown sequences are ignored."""
        self._prompts.remove(sequence)
        for row in [*self._decoding.all_rows, *self._retired]:
            row.finished = row.finished or row.id == sequence

    def retire(self) -> None:
        """Drop the rows that ended, or of which all tokens are sampled."""
        for group in self._decoding.all:
            ended = [row for row in group.rows if row.finished or row.left == 0]
            if ended:
                for row in ended:
                    if not row.pending.prepared.order.is_trial:
                        self._typical_request.record(row.pending.prefill_s, len(row.answer_ids))
                group.record_rest(ended)
                group.drop(ended)
                self._retired += ended
        self._decoding.drop_empty()
        if self._retired:
            self._accounting.lend_rest()
            self._retired = [row for row in self._retired if not row.finish_recording()]

    def record_step(self, group: DecodeGroup, rows: int, seconds: float) -> None:
        """Record a step of a group.

        Args:
            rows: the rows of the step; some may have left the group since.
        """
        group.record_step(seconds)
        self.fair_share.charge(group, group.step_s)
        # One token of every row takes a step of every group.
        others = [other for other in self.groups if other is not group]
        seconds += sum(other.step_s for other in others)
        rows += sum(len(other) for other in others)
        if self.adaptive is None:
            self._cost.record_step(rows, seconds)
        else:
            ready = self._prompts.ready_rows + len(self._decoding.parked)
            waiting = len(self._prompts.pending) + ready
            self.adaptive.record_step(seconds, rows, waiting, self._clock())

    @property
    def step_s(self) -> float:
        """The seconds of a step of every group, measured, or predicted for new groups."""
        line = self._cost.line
        return sum(group.step_s or line.seconds(len(group)) for group in self.groups)

    def __len__(self) -> int:
        """The number of sequences that hold KV cache memory."""
        return len(self._decoding.all_rows) + len(self._prompts)

    def measured(self, model: ModelId, now: float) -> BatchMeasurements:
        """Return the current state, for reports."""
        steps_s = sum(group.step_s for group in self.groups)
        adaptive, rows = self.adaptive, len(self._decoding.rows)
        next_s = adaptive.step_s(min(rows + 1, adaptive.limit)) if adaptive else 0.0
        line = self._cost.optimistic(max(1, rows))
        return BatchMeasurements(
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
        """The due time of the next prompt that may be prefilled; None if there is none."""
        return self._prompts.next_due

    @property
    def waiting_prefill_s(self) -> float:
        """The seconds that the waiting prompts would take if each were prefilled alone."""
        return sum(self._prompts.seconds(each) for each in self._prompts.pending)

    def prefill(
        self, seconds: float, on_pass: Callable[[list[int]], None] = lambda _: None
    ) -> list[PrefillProgress]:
        """Prefill one chunk of the job that is due first; complete rows begin to decode if slots
        are free.

        Args:
            seconds: the chunk is sized to take about this long; it is never empty.
            on_pass: called with the sequences of the pass before the network runs.
        """
        job = self._prompts.advance(seconds, on_pass, alone=not self._decoding.rows)
        self.join()
        return job.progress()

    def is_prefill_worthwhile(self, seconds: float) -> bool:
        """Whether a chunk that fits into `seconds` is large enough to be worth a pass."""
        return self._prompts.is_worthwhile(seconds)

    def take_restored(self) -> list[tuple[int, int]]:
        """Return, and clear, the sequences that began with cached tokens, and how many tokens."""
        restored, self._prompts.restored = self._prompts.restored, []
        return restored

    def _free_slots(self, urgent: bool) -> int:
        """The number of prompts that may begin: rows that decode, or are ready to, hold a slot."""
        return self._slot_limit(urgent) - len(self._decoding.rows) - self._prompts.ready_rows

    # Slots.

    def _slot_limit(self, urgent: bool) -> int:
        """The adaptive limit does not apply to the highest priority."""
        return self._max_size if self.adaptive is None or urgent else self.adaptive.limit

    @property
    def can_join(self) -> bool:
        """Whether a sequence is ready to decode and has a slot, free or by preemption."""
        return self._next_to_join() is not None

    def join(self) -> None:
        """Start decoding the sequences that are ready, while slots are free or rows can be
        preempted. All sampled tokens must have been read. A sequence may end with its first
        token: call `retire` afterwards."""
        while (found := self._next_to_join()) is not None:
            ready, row = found
            if row is not None:
                self._decoding.park(row)
            if isinstance(ready, PrefillBatch):
                self._prompts.jobs.remove(ready)
                ready.record_rest()  # not done yet if the last row to be prefilled was cancelled
                ready = self._decoding_group(ready)
            for each in ready.rows:
                each.since = self._clock()
            self._decoding.join(ready, self._prompts.upcoming)

    def _decoding_group(self, job: PrefillBatch) -> DecodeGroup:
        """Make a group of a complete job; samples its first tokens if their logits are known."""
        rows, logits = [self._row(each) for each in job.rows], job.logits
        inputs = mx.array(job.inputs, dtype=mx.uint32)
        group = DecodeGroup(self._model.network, rows, job.release_caches(), inputs)
        if logits is not None:
            self.first_tokens += group.sample_from(logits).read()
        return group

    def _next_to_join(self) -> tuple[PrefillBatch | DecodeGroup, DecodingRow | None] | None:
        """Return the job or parked group that is due first of those that can have a slot, and the
        row that is preempted for it, if any. Only the first sequence of a job needs a free slot:
        when the job began, there were slots for all of them."""
        ready: list[PrefillBatch | DecodeGroup] = [*self._prompts.complete, *self._decoding.parked]
        if not ready:
            return None
        step_s = self._cost.line.seconds(max(1, len(self._decoding.rows)))
        parkable = self._decoding.parkable
        slots = [
            SlotHolder(row.priority, row.since, row.left * step_s, row.client) for row in parkable
        ]
        for each in sorted(ready, key=_due_at):
            waiting = self._waiting(each, step_s)
            if self._slot_limit(waiting.priority == 0) > len(self._decoding.rows):
                return each, None
            if (index := row_to_preempt(waiting, slots, self._clock())) is not None:
                return each, parkable[index]
        return None

    def _waiting(self, ready: PrefillBatch | DecodeGroup, step_s: float) -> SlotWaiter:
        """Return the input of the preemption decision. The work of a new sequence is its prefill
        and a typical answer; the work of a parked row is all that it may still generate."""
        if isinstance(ready, DecodeGroup):
            (row,) = ready.rows
            return SlotWaiter(row.pending.overdue_at, row.priority, row.left * step_s)
        pending = ready.pending
        order = pending[0].prepared.order
        left = pending[0].prepared.max_tokens - len(order.answer_ids)
        return SlotWaiter(
            min(each.overdue_at for each in pending),
            min(each.prepared.order.priority for each in pending),
            sum(each.prefill_s for each in pending)
            + min(left, self._typical_request.answer_tokens) * step_s,
            any(each.prepared.order.is_newcomer for each in pending),
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
    def preemption_candidates(self) -> list[PreemptionCandidate]:
        pending = [row.pending for row in self._decoding.all_rows]
        pending += [each for job in self._prompts.jobs for each in job.pending]
        return [
            PreemptionCandidate(each.prepared.order.priority, each.arrived_at, each.id)
            for each in pending
        ]

    def can_grow(self, group: DecodeGroup) -> bool:
        """Whether the next step of a group fits into memory without a preemption."""
        return self._accounting.fits(_growth_needed(group))

    def ensure_capacity(self, group: DecodeGroup) -> bool:
        """Make memory available for the next step of a group; may preempt sequences. Returns False
        if none of its rows is left."""
        if not group.has_capacity:
            self._accounting.ensure_free(lambda: _growth_needed(group))
            if group.rows and not group.has_capacity:
                group.grow()
        return bool(group.rows)

    def release_slack(self) -> None:
        for group in self._decoding.all:
            group.fit()

    def preempt(self, sequence: int) -> None:
        """Free the memory of a sequence and queue it again; its prompt and the tokens generated so
        far are prefilled later."""
        if (pending := self._prompts.preempt(sequence)) is not None:
            self._prompts.add_again(pending, pending.prepared)
            self.preempted.append(sequence)
        for group in self._decoding.all:
            for row in [row for row in group.rows if row.id == sequence]:
                row.finished = True
                group.record_rest([row])
                group.drop([row])
                if group.rows:
                    group.fit()
                self._accounting.lend_rest()
                row.finish_recording()
                self._prompts.add_again(row.pending, row.pending.prepared.resumed(row.answer_ids))
                self.preempted.append(sequence)
        self._decoding.drop_empty()


def _due_at(ready: PrefillBatch | DecodeGroup) -> float:
    """A parked row keeps its due time, so that it gets the next free slot."""
    if isinstance(ready, DecodeGroup):
        return ready.rows[0].pending.due_at
    return ready.due_at


def _growth_needed(group: DecodeGroup) -> int:
    if not group.rows or group.has_capacity:
        return 0
    return group.growth_bytes
