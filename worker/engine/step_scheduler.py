"""Steps of all models on one device: the groups of rows by turns, and prefill between them."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from shared.ids import ModelId
from worker.engine.batch import Batch
from worker.engine.decoding import DecodeGroup, SampledTokens
from worker.engine.fair_share import FairShare
from worker.engine.prefill import PrefillProgress
from worker.engine.prompt import PreparedSequence
from worker.engine.sequence import Sequence
from worker.engine.tokens import Token
from worker.link.activity import ActivityRecord, EngineActivity
from worker.link.facts import (
    Fact,
    PrefillAdvanced,
    PrefixRestored,
    SequencePreempted,
    SequenceRejected,
    StepCompleted,
)

_SHORT_S = 0.005
"""On a CPU, shorter steps spend little of their time in matrix products, which use every core."""
_STEPS_OF_PREFILL = 7
_LONGEST_OF_STALL = 1.3
"""Where steps are slow, prefill gets as long as so many of them, but not longer than so many times
the stall that is allowed: each step holds up all who wait, and brings tokens to few."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step whose tokens are not read."""

    batch: Batch
    group: DecodeGroup
    sampled: SampledTokens
    began_at: float
    work: EngineActivity


class StepScheduler:
    """In each round every group of rows steps at least once, then prompts are prefilled for a
    while: whoever calls `step` calls `prefill` then. Belongs to the engine thread.

    Args:
        batches: of the models, as they come and go.
        send: takes what was generated, and how far prompts are.
        activity: where it writes which model and sequences it is busy with.
        max_decode_stall_s: how long those who decode may wait for their next token; a step and
            1.3 times as long where steps are slow.
        asks_first: ask the device for a step before the tokens of the last one are read.
    """

    def __init__(
        self,
        batches: Mapping[ModelId, Batch],
        send: Callable[[Fact], None],
        activity: ActivityRecord,
        *,
        max_decode_stall_s: float,
        asks_first: bool,
    ) -> None:
        self._batches = batches
        self._send = send
        self._activity = activity
        self._max_decode_stall_s = max_decode_stall_s
        self._asks_first = asks_first
        self._turns = FairShare(longest_debt_s=max_decode_stall_s)
        self._sequences: dict[int, Sequence] = {}
        self._ahead: _Step | None = None
        self._prefill_next = False
        self._free_at = 0.0  # when the device had nothing more to do, as far as is known

    def __len__(self) -> int:
        """Sequences that have not ended."""
        return len(self._sequences)

    @property
    def can_step(self) -> bool:
        """Whether `step` has something to do now: not while all wait for files to be read."""
        prefills = (batch.next_due is not None for batch in self._batches.values())
        joins = (batch.can_join for batch in self._batches.values())
        return bool(self._ahead or self._groups() or any(prefills) or any(joins))

    @property
    def waiting_prefill_s(self) -> float:
        """What the prefill of those that wait will take, if each is alone."""
        return sum(batch.waiting_prefill_s for batch in self._batches.values())

    @property
    def step_times(self) -> list[float]:
        """Of each group of rows, in seconds."""
        return [group.step_s for group in self._groups()]

    # Sequences.

    def add(self, sequence: Sequence, prepared: PreparedSequence) -> None:
        self._sequences[sequence.id] = sequence
        self._activity.begin(EngineActivity("prefill", sequence.model, (sequence.id,)))
        self._batches[sequence.model].add(prepared)
        self._activity.end()

    def remove(self, sequence_id: int) -> Sequence | None:
        """Take one out that has not ended; None when there is no such one."""
        if (sequence := self._sequences.pop(sequence_id, None)) is not None:
            self._activity.begin(EngineActivity("step", sequence.model, (sequence.id,)))
            self._batches[sequence.model].remove(sequence_id)
            self._batches[sequence.model].retire()
            self._activity.end()
        return sequence

    def remove_all_of(self, model: ModelId) -> list[Sequence]:
        """Take out those of a model, and a step of it that was not read."""
        removed = [sequence for sequence in self._sequences.values() if sequence.model == model]
        for sequence in removed:
            self.remove(sequence.id)
        if self._ahead is not None and self._ahead.batch is self._batches.get(model):
            self._put_ahead(None)
        return removed

    # Steps.

    def step(self) -> None:
        """Run a step of the group whose turn it is; call `prefill` next. Where it pays, the tokens
        are read only when the next step is prepared, unless a row or a prompt is about to join."""
        step = self._sample()
        self._prefill_next = self._may_prefill()
        changes = self._prefill_next or any(batch.can_join for batch in self._batches.values())
        if step is not None and self._asks_first:
            step.sampled.ask()
        self._read_ahead()
        if step is not None and step.sampled.is_wanted:
            self._activity.begin(step.work)
            if not self._asks_first:
                step.sampled.ask()
            if step.sampled.has_fresh or changes or not self._pays_ahead(step):
                self._read(step)
            else:
                self._put_ahead(step)
        for model, batch in self._batches.items():
            batch.retire()
            if self._ahead is None:
                if batch.can_join:
                    self._activity.begin(EngineActivity("step", model, self._all_of(model)))
                batch.join()
                self._tell_first(batch)
        if not self._sequences:
            self._put_ahead(None)
        self._activity.end()

    def _pays_ahead(self, step: _Step) -> bool:
        """Whether to prepare the next step before this one is read. On a CPU that takes a core
        from the matrix products of this one."""
        return self._asks_first or step.group.step_s < _SHORT_S

    def read_ahead(self) -> None:
        """Read the step that the device was asked for before its turn, so that of every row all
        tokens are known but the last."""
        if self._read_ahead():
            for batch in self._batches.values():
                batch.retire()
            self._activity.end()

    def paused(self) -> None:
        """The device did something else until now."""
        self._free_at = time.perf_counter()

    def report_preempted(self) -> None:
        """Tell which sequences had to give way."""
        for batch in self._batches.values():
            for sequence in batch.preempted:
                self._send(SequencePreempted(sequence))
            batch.preempted.clear()

    def _sample(self) -> _Step | None:
        """Ask the device for the next tokens of one group, if there is any."""
        while batches := [batch for batch in self._batches.values() if batch.groups]:
            batch = self._turns.next(batches)
            group = batch.turns.next(batch.groups)
            work = _work_of(group)
            if self._ahead is not None and not batch.has_room(group):
                self.read_ahead()  # who gives way goes on where it was
                continue
            self._activity.begin(work)
            has_rows = batch.make_room(group)
            self.report_preempted()
            if has_rows:
                began_at = time.perf_counter()  # on a CPU most of the step is done when it is asked
                return _Step(batch, group, self._sampled(group, work), began_at, work)
        return None

    def _sampled(self, group: DecodeGroup, work: EngineActivity) -> SampledTokens:
        """The next tokens of a group. Where they depend on those before, the device computes the
        logits while these are read."""
        if not group.is_constrained:
            return group.sample()
        logits = group.forward()
        if self._asks_first:
            mx.async_eval(logits)
        if self._read_ahead():
            self._activity.begin(work)
        return group.sample_next(logits)

    def _read_ahead(self) -> bool:
        """Whether there was a step to read."""
        step = self._ahead
        if step is None:
            return False
        self._activity.begin(step.work)  # before it counts as ahead no more
        self._put_ahead(None)
        self._read(step)
        return True

    def _put_ahead(self, step: _Step | None) -> None:
        """Read this step later."""
        if step is not self._ahead:
            self._ahead = step
            self._activity.ask_ahead(step.work if step is not None else None)

    def _read(self, step: _Step) -> None:
        """Wait for the tokens of a step and send them."""
        tokens = step.sampled.read()
        now = time.perf_counter()
        seconds = now - max(step.began_at, self._free_at)
        self._free_at = now
        step.batch.took(step.group, len(step.sampled), seconds)
        self._turns.took(step.batch, step.group.step_s)
        self._tell(tokens)

    def _tell_first(self, batch: Batch) -> None:
        """Send the tokens that were drawn where prompts were complete."""
        if batch.first:
            first, batch.first = batch.first, []
            self._tell(first)
            batch.retire()

    def _tell(self, tokens: Iterable[Token]) -> None:
        outputs = [
            self._sequences[token.sequence].advance(token)
            for token in tokens
            if token.sequence in self._sequences  # else cancelled, its last one on its way
        ]
        if outputs:
            self._send(StepCompleted(outputs))
        for output in outputs:
            problem = self._sequences[output.sequence].problem
            if output.finish_reason is None:
                if problem is None:
                    continue
                self._send(SequenceRejected(output.sequence, "request_failed", problem))
            sequence = self._sequences.pop(output.sequence)
            self._batches[sequence.model].remove(sequence.id)

    def _groups(self) -> list[DecodeGroup]:
        return [group for batch in self._batches.values() for group in batch.groups]

    # Prefill.

    def _may_prefill(self) -> bool:
        """Once every group has stepped since the last time: so none waits for two of them."""
        stepped = all(group.stepped for group in self._groups())
        return stepped and self._next_to_prefill() is not None

    def _next_to_prefill(self) -> Batch | None:
        """Of the models with prompts the one that had the least of the device."""
        batches = [batch for batch in self._batches.values() if batch.next_due is not None]
        return self._turns.next(batches) if batches else None

    def _prefill_some(self, batch: Batch, seconds: float) -> None:
        """One pass of a model, and what it brought."""
        model = next(model for model, each in self._batches.items() if each is batch)

        def begins(sequences: Iterable[int]) -> None:
            self._activity.begin(EngineActivity("prefill", model, tuple(sequences)))

        begins(self._all_of(model))
        self._report(batch.prefill(seconds, begins))
        for sequence, tokens in batch.take_restored():
            self._send(PrefixRestored(sequence, tokens))
        self._tell_first(batch)
        self._activity.end()

    def _all_of(self, model: ModelId) -> tuple[int, ...]:
        return tuple(each.id for each in self._sequences.values() if each.model == model)

    def prefill(self) -> None:
        """Prefill for as long as those who decode may wait, if it is time for that."""
        if not self._prefill_next:
            return
        self._prefill_next = False
        alone = not self._groups()
        began_at = time.perf_counter()
        until = began_at + self._longest_prefill_s
        batch = self._next_to_prefill()
        while batch is not None:
            self._prefill_some(batch, until - began_at)
            now = time.perf_counter()
            self._turns.took(batch, now - began_at)
            self._free_at = began_at = now
            if not self._groups():
                break  # who waits for nobody hears between two passes who comes and who leaves
            batch = self._next_to_prefill()
            if alone:
                if any(row.fresh for group in self._groups() for row in group.rows):
                    break  # whoever has waited alone gets its first token before the next prompt
                alone, until = False, now + self._longest_prefill_s
            if batch is not None and not batch.prefill_pays(until - now):
                break
        for group in self._groups():
            group.stepped = False

    @property
    def _longest_prefill_s(self) -> float:
        """How long those who decode may wait before their next step."""
        step_s = sum(batch.step_s for batch in self._batches.values())
        stall_s = self._max_decode_stall_s
        slow_s = min(_STEPS_OF_PREFILL * step_s, _LONGEST_OF_STALL * stall_s)
        return max(stall_s - step_s, slow_s)

    def _report(self, progress: list[PrefillProgress]) -> None:
        for prefill in progress:
            if prefill.done < prefill.total - 1:
                self._send(PrefillAdvanced(prefill.sequence, prefill.done, prefill.total))


def _work_of(group: DecodeGroup) -> EngineActivity:
    """A step of a group."""
    rows = group.rows
    return EngineActivity(
        "step", rows[0].pending.prepared.order.model, tuple(row.id for row in rows)
    )
