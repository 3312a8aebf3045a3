"""Schedules the steps of all models on one device: groups in turn, with prefill in between."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from shared.ids import ModelId
from worker.engine.batch import ModelBatch
from worker.engine.decoding import DecodeGroup, SampledTokens
from worker.engine.fair_share import FairShareScheduler
from worker.engine.prefill import PrefillProgress
from worker.engine.prompt import PreparedSequence
from worker.engine.sequence import GeneratedToken, OutputBuilder
from worker.link.activity import EngineActivity, EngineActivityRecord
from worker.link.facts import (
    Fact,
    PrefillAdvanced,
    PrefixReused,
    SequencePreempted,
    SequenceRejected,
    StepCompleted,
)

_SHORT_S = 0.005
"""On a CPU, shorter steps spend little of their time in matrix products, which use every core."""
_PREFILL_STEPS = 7
_MAX_STALL_RATIO = 1.3
"""If steps are slow, prefill may take as long as 7 of them, since each step delays all waiting
prompts and generates few tokens; but never more than 1.3 times the allowed stall."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step whose tokens are not read yet."""

    batch: ModelBatch
    group: DecodeGroup
    sampled: SampledTokens
    began_at: float
    work: EngineActivity


class StepScheduler:
    """In each round every group of rows steps at least once, then prompts are prefilled for a
    while. The caller calls `step` and `prefill` alternately. Belongs to the engine thread.

    Args:
        batches: of the loaded models; changed by the caller.
        send: receives outputs and prefill progress.
        activity: records the model and sequences of the current work.
        max_decode_stall_s: how long prefill may delay the next token of decoding rows; up to
            `_MAX_STALL_RATIO` times as long if steps are slow.
        evaluates_ahead: start evaluating a step before the tokens of the last one are read.
    """

    def __init__(
        self,
        batches: Mapping[ModelId, ModelBatch],
        send: Callable[[Fact], None],
        activity: EngineActivityRecord,
        *,
        max_decode_stall_s: float,
        evaluates_ahead: bool,
    ) -> None:
        self._batches = batches
        self._send = send
        self._activity = activity
        self._max_decode_stall_s = max_decode_stall_s
        self._evaluates_ahead = evaluates_ahead
        self._fair_share = FairShareScheduler(longest_debt_s=max_decode_stall_s)
        self._sequences: dict[int, OutputBuilder] = {}
        self._ahead: _Step | None = None
        self._prefill_next = False
        self._idle_since = 0.0  # when the last known work of the device ended

    def __len__(self) -> int:
        """The number of sequences that have not ended."""
        return len(self._sequences)

    @property
    def can_step(self) -> bool:
        """Whether `step` has work now; False while all prompts wait for blocks from disk."""
        prefills = (batch.next_due is not None for batch in self._batches.values())
        joins = (batch.can_join for batch in self._batches.values())
        return bool(self._ahead or self._groups() or any(prefills) or any(joins))

    @property
    def waiting_prefill_s(self) -> float:
        """The seconds that the waiting prompts would take if each were prefilled alone."""
        return sum(batch.waiting_prefill_s for batch in self._batches.values())

    @property
    def step_times(self) -> list[float]:
        """The step time of each group, in seconds."""
        return [group.step_s for group in self._groups()]

    # Sequences.

    def add(self, sequence: OutputBuilder, prepared: PreparedSequence) -> None:
        self._sequences[sequence.id] = sequence
        self._activity.begin(EngineActivity("prefill", sequence.model, (sequence.id,)))
        self._batches[sequence.model].add(prepared)
        self._activity.end()

    def remove(self, sequence_id: int) -> OutputBuilder | None:
        """Remove and return a sequence that has not ended; None if there is none."""
        if (sequence := self._sequences.pop(sequence_id, None)) is not None:
            self._activity.begin(EngineActivity("step", sequence.model, (sequence.id,)))
            self._batches[sequence.model].remove(sequence_id)
            self._batches[sequence.model].retire()
            self._activity.end()
        return sequence

    def remove_all(self, model: ModelId) -> list[OutputBuilder]:
        """Remove and return the sequences of a model; also drops its unread step."""
        removed = [sequence for sequence in self._sequences.values() if sequence.model == model]
        for sequence in removed:
            self.remove(sequence.id)
        if self._ahead is not None and self._ahead.batch is self._batches.get(model):
            self._set_ahead(None)
        return removed

    # Steps.

    def step(self) -> None:
        """Run a step of the group that is scheduled next; call `prefill` afterwards. If it saves
        time, the tokens are read only after the next step was built, unless a row or a prompt is
        about to join."""
        step = self._sample()
        self._prefill_next = self._may_prefill()
        changes = self._prefill_next or any(batch.can_join for batch in self._batches.values())
        if step is not None and self._evaluates_ahead:
            step.sampled.start_evaluation()
        self._read_ahead()
        if step is not None and step.sampled.has_active_rows:
            self._activity.begin(step.work)
            if not self._evaluates_ahead:
                step.sampled.start_evaluation()
            if step.sampled.has_fresh or changes or not self._may_read_later(step):
                self._read(step)
            else:
                self._set_ahead(step)
        for model, batch in self._batches.items():
            batch.retire()
            if self._ahead is None:
                if batch.can_join:
                    self._activity.begin(EngineActivity("step", model, self._sequence_ids(model)))
                batch.join()
                self._send_first_tokens(batch)
        if not self._sequences:
            self._set_ahead(None)
        self._activity.end()

    def _may_read_later(self, step: _Step) -> bool:
        """Whether to build the next step before this one is read. On a CPU that takes a core from
        the matrix products of this step, so only short steps are read later."""
        return self._evaluates_ahead or step.group.step_s < _SHORT_S

    def read_ahead(self) -> None:
        """Read the step that was evaluated ahead, if any, so that all sampled tokens are known."""
        if self._read_ahead():
            for batch in self._batches.values():
                batch.retire()
            self._activity.end()

    def skip_idle_time(self) -> None:
        """Exclude other work of the device until now from the time of the next step."""
        self._idle_since = time.perf_counter()

    def report_preempted(self) -> None:
        """Send the sequences that were preempted."""
        for batch in self._batches.values():
            for sequence in batch.preempted:
                self._send(SequencePreempted(sequence))
            batch.preempted.clear()

    def _sample(self) -> _Step | None:
        """Build the next step of one group; None if no group has rows."""
        while batches := [batch for batch in self._batches.values() if batch.groups]:
            batch = self._fair_share.next(batches)
            group = batch.fair_share.next(batch.groups)
            work = _work_of(group)
            if self._ahead is not None and not batch.can_grow(group):
                self.read_ahead()  # a preempted sequence must know all of its tokens
                continue
            self._activity.begin(work)
            has_rows = batch.ensure_capacity(group)
            self.report_preempted()
            if has_rows:
                began_at = (
                    time.perf_counter()
                )  # before `start_evaluation`, most of the step on a CPU
                return _Step(batch, group, self._sampled(group, work), began_at, work)
        return None

    def _sampled(self, group: DecodeGroup, work: EngineActivity) -> SampledTokens:
        """Sample the next tokens of a group. With constraints they depend on the values of the last
        tokens: the device computes the logits while these are read."""
        if not group.is_constrained:
            return group.sample()
        logits = group.forward()
        if self._evaluates_ahead:
            mx.async_eval(logits)
        if self._read_ahead():
            self._activity.begin(work)
        return group.sample_next(logits)

    def _read_ahead(self) -> bool:
        """Read the step ahead; return whether there was one."""
        step = self._ahead
        if step is None:
            return False
        self._activity.begin(step.work)  # before the record of the step ahead is cleared
        self._set_ahead(None)
        self._read(step)
        return True

    def _set_ahead(self, step: _Step | None) -> None:
        """Set the step that is read later."""
        if step is not self._ahead:
            self._ahead = step
            self._activity.set_ahead(step.work if step is not None else None)

    def _read(self, step: _Step) -> None:
        """Wait for the tokens of a step and send them."""
        tokens = step.sampled.read()
        now = time.perf_counter()
        seconds = now - max(step.began_at, self._idle_since)
        self._idle_since = now
        step.batch.record_step(step.group, len(step.sampled), seconds)
        self._fair_share.charge(step.batch, step.group.step_s)
        self._send_tokens(tokens)

    def _send_first_tokens(self, batch: ModelBatch) -> None:
        """Send the tokens that were sampled at the end of prefill."""
        if batch.first_tokens:
            first, batch.first_tokens = batch.first_tokens, []
            self._send_tokens(first)
            batch.retire()

    def _send_tokens(self, tokens: Iterable[GeneratedToken]) -> None:
        outputs = [
            self._sequences[token.sequence].advance(token)
            for token in tokens
            if token.sequence in self._sequences  # else cancelled, its last output is sent
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
        """Whether every group has stepped since the last prefill, so that no group waits for two
        prefills in a row."""
        stepped = all(group.stepped for group in self._groups())
        return stepped and self._next_to_prefill() is not None

    def _next_to_prefill(self) -> ModelBatch | None:
        """Return the batch with prompts whose model has had the least device time."""
        batches = [batch for batch in self._batches.values() if batch.next_due is not None]
        return self._fair_share.next(batches) if batches else None

    def _prefill_pass(self, batch: ModelBatch, seconds: float) -> None:
        """Run one prefill pass of a model, and send its results."""
        model = next(model for model, each in self._batches.items() if each is batch)

        def on_pass(sequences: Iterable[int]) -> None:
            self._activity.begin(EngineActivity("prefill", model, tuple(sequences)))

        on_pass(self._sequence_ids(model))
        self._report(batch.prefill(seconds, on_pass))
        for sequence, tokens in batch.take_restored():
            self._send(PrefixReused(sequence, tokens))
        self._send_first_tokens(batch)
        self._activity.end()

    def _sequence_ids(self, model: ModelId) -> tuple[int, ...]:
        return tuple(each.id for each in self._sequences.values() if each.model == model)

    def prefill(self) -> bool:
        """Prefill for as long as decoding rows may wait, if `step` decided that prefill is next;
        return whether it was."""
        if not self._prefill_next:
            return False
        self._prefill_next = False
        alone = not self._groups()
        began_at = time.perf_counter()
        until = began_at + self._longest_prefill_s
        batch = self._next_to_prefill()
        while batch is not None:
            self._prefill_pass(batch, until - began_at)
            now = time.perf_counter()
            self._fair_share.charge(batch, now - began_at)
            self._idle_since = began_at = now
            if not self._groups():
                break  # no row decodes: handle new orders between two passes
            batch = self._next_to_prefill()
            if alone:
                if any(row.fresh for group in self._groups() for row in group.rows):
                    break  # the first row gets its first token before the next prompt is prefilled
                alone, until = False, now + self._longest_prefill_s
            if batch is not None and not batch.is_prefill_worthwhile(until - now):
                break
        for group in self._groups():
            group.stepped = False
        return True

    @property
    def _longest_prefill_s(self) -> float:
        """The seconds that decoding rows may wait before their next step."""
        step_s = sum(batch.step_s for batch in self._batches.values())
        stall_s = self._max_decode_stall_s
        slow_s = min(_PREFILL_STEPS * step_s, _MAX_STALL_RATIO * stall_s)
        return max(stall_s - step_s, slow_s)

    def _report(self, progress: list[PrefillProgress]) -> None:
        for prefill in progress:
            if prefill.done < prefill.total - 1:
                self._send(PrefillAdvanced(prefill.sequence, prefill.done, prefill.total))


def _work_of(group: DecodeGroup) -> EngineActivity:
    """Return the activity record of a group's step."""
    rows = group.rows
    return EngineActivity(
        "step", rows[0].pending.prepared.order.model, tuple(row.id for row in rows)
    )
