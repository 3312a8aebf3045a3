"""The prompts of one model that wait or are being prefilled, and the choice of the next one."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel
from worker.engine.prefill import PendingPrefill, PrefillBatch, PrefillRow
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.kv_memory.block_tree import PrefixMatch

_STRETCH = 40.0
"""A prompt becomes overdue this multiple of its own prefill time after its arrival: short prompts
go before long ones, but long ones do not starve."""
_NEWCOMER_STRETCH = 4.0
"""The same for the due time of a newcomer, which may take a slot of another client at once."""

_PRIORITY_DELAY_S = 10.0
"""Prompts are prefilled in the order of their due times. A prompt is due when it becomes overdue,
plus this much per priority below high: prompts of low priority wait, but do not starve."""

_MIN_CHUNK_TOKENS = 8
_SMALL_REST = 0.5
"""A chunk includes the rest of its prompts if that is at most this share of `overhead_tokens` (what
a pass costs regardless of its tokens): another pass would cost more."""
_MAX_SHARED_OVERHEADS = 4
"""While rows decode, only prompts of up to this multiple of `overhead_tokens` share a pass. While
no row decodes, all prompts that fit share one: they will step together, too."""


class PrefillScheduler:
    """Belongs to the engine thread.

    Args:
        free_slots: returns how many more sequences may begin, for high priority (True) or for any
            other. An overdue sequence may begin without a free slot: it will preempt one.
        prefix_cache: None if nothing is cached.

    Attributes:
        pending: prompts that wait.
        jobs: being prefilled, or complete and waiting for a slot.
        restored: sequences that began with cached tokens, and how many, since the caller last
            emptied the list.
    """

    def __init__(
        self,
        model: LoadedModel,
        accounting: KVAccounting,
        prefix_cache: PrefixCache | None,
        *,
        max_chunk_tokens: int,
        free_slots: Callable[[bool], int],
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._accounting = accounting
        self._prefix_cache = prefix_cache
        self._max_chunk_tokens = max_chunk_tokens
        self._free_slots = free_slots
        self._clock = clock
        self.pending: list[PendingPrefill] = []
        self.jobs: list[PrefillBatch] = []
        self.restored: list[tuple[int, int]] = []

    def close(self) -> None:
        """Accept no more prompts. Also drops the callback: its reference cycle would hold the
        model's memory until the next garbage collection."""
        self._free_slots = lambda _: 0

    def __len__(self) -> int:
        """The number of sequences in jobs."""
        return sum(len(job.rows) for job in self.jobs)

    @property
    def complete(self) -> list[PrefillBatch]:
        """The jobs that wait for slots."""
        return [job for job in self.jobs if job.complete]

    @property
    def ready_rows(self) -> int:
        """The number of rows that wait for a slot."""
        return sum(len(job.rows) for job in self.complete)

    @property
    def upcoming(self) -> list[int]:
        """The tokens of each sequence that may join before any decoding row leaves."""
        pending = sorted(self.pending, key=lambda each: each.due_at)[
            : max(0, self._free_slots(False))
        ]
        return [len(row.ids) for job in self.jobs for row in job.rows] + [
            each.tokens for each in pending
        ]

    def add(self, prepared: PreparedSequence) -> None:
        """Queue a sequence."""
        now = self._clock()
        pending = PendingPrefill(prepared, now, now, now)
        self._start_restore(pending)
        is_newcomer, seconds = prepared.order.is_newcomer, self.seconds(pending)
        if not is_newcomer:
            pending.overdue_at += _STRETCH * seconds
        pending.due_at += (_NEWCOMER_STRETCH if is_newcomer else _STRETCH) * seconds
        pending.due_at += _PRIORITY_DELAY_S * prepared.order.priority
        self.pending.append(pending)

    def seconds(self, pending: PendingPrefill) -> float:
        """Predict the prefill time of a waiting sequence alone."""
        return self._model.prefill_speed.seconds(pending.left + 1)

    def add_again(self, pending: PendingPrefill, prepared: PreparedSequence) -> None:
        """Queue a preempted sequence, with the tokens that it has generated."""
        again = replace(pending, prepared=prepared, again=True, restore=None, awaits=None)
        self._start_restore(again)
        self.pending.append(again)

    def remove(self, sequence: int) -> None:
        """Drop a sequence; unknown sequences are ignored."""
        for each in [each for each in self.pending if each.id == sequence]:
            self._forget(each)
        self._remove_from_job(sequence)

    def preempt(self, sequence: int) -> PendingPrefill | None:
        """Remove a sequence from its job and free its memory; None if it is in no job."""
        for job in self.jobs:
            for row in job.rows:
                if row.pending.id == sequence:
                    job.record_blocks()
                    self._remove_from_job(sequence)
                    return row.pending
        return None

    def _remove_from_job(self, sequence: int) -> None:
        for job in self.jobs:
            job.remove(sequence)
        self.jobs = [job for job in self.jobs if job.rows]

    # The next prompt.

    @property
    def next_due(self) -> float | None:
        """The due time of the next prompt that may be prefilled; None if there is none."""
        first = self._next()
        return first.due_at if first is not None else None

    def is_worthwhile(self, seconds: float) -> bool:
        """Whether a chunk that fits into `seconds` is worth a pass: it completes the next prompt,
        or its tokens cost at least as much as the pass itself (`overhead_tokens`)."""
        first, speed = self._next(), self._model.prefill_speed
        assert first is not None
        if isinstance(first, PendingPrefill):
            context, left, rows = first.tokens - 1 - first.left, first.left, 1
        else:
            context, left, rows = first.done, first.left, len(first.rows)
        min_tokens = max(_MIN_CHUNK_TOKENS, speed.overhead_tokens // rows)
        return speed.tokens_in(seconds, context) // rows >= min(left, min_tokens)

    def advance(
        self,
        seconds: float,
        on_pass: Callable[[list[int]], None] = lambda _: None,
        *,
        alone: bool,
    ) -> PrefillBatch:
        """Prefill one chunk of the job that is due first.

        Args:
            seconds: the chunk is sized to take about this long; it is never empty.
            on_pass: called with the sequences of the pass before the network runs.
            alone: no row decodes.
        """
        first = self._next()
        assert first is not None
        job = self._open(first, seconds, alone) if isinstance(first, PendingPrefill) else first
        rows, speed = len(job.rows), self._model.prefill_speed
        target = speed.tokens_in(seconds, job.done) // rows
        if (job.left - target) * rows <= _SMALL_REST * speed.overhead_tokens:
            target = job.left
        count = min(max(target, _MIN_CHUNK_TOKENS), self._max_chunk_tokens // rows, job.left)
        if self._prefix_cache is not None:
            count = min(count, self._prefix_cache.until_snapshot(job.done))
        on_pass([row.pending.id for row in job.rows])
        context, tokens = job.done, count * rows
        began_at = self._clock()
        job.advance(count)
        took_s = self._clock() - began_at
        for row in job.rows:
            row.pending.prefill_s += took_s / rows
        if tokens >= _MIN_CHUNK_TOKENS:
            speed.record_pass(tokens, context, took_s)
        if job.complete:
            job.record_rest()
        else:
            job.record_blocks()
        return job

    def _next(self) -> PrefillBatch | PendingPrefill | None:
        """Return what is due first: a job that has begun, or a prompt that may begin."""
        unfinished = (job for job in self.jobs if not job.complete)
        job = min(unfinished, key=lambda job: job.due_at, default=None)
        pending = self._admissible()
        if job is None or (pending is not None and pending.due_at < job.due_at):
            return pending
        return job

    def _admissible(self) -> PendingPrefill | None:
        """Return the prompt that is due first of those that may begin, if a slot and memory are
        available for it."""
        ready = [each for each in self.pending if self._may_begin(each)]
        first = min(ready, key=lambda each: each.due_at, default=None)
        if first is None:
            return None
        may_preempt = first.overdue_at <= self._clock()
        if self._free_slots(first.urgent) < 1 and not may_preempt:
            return None
        return first if self._accounting.admits(self._bytes(1, first.tokens)) else None

    def _may_begin(self, pending: PendingPrefill) -> bool:
        """Whether its prefix is neither being read from disk nor being computed in a job."""
        if pending.awaits is not None:
            job, sequence, common = pending.awaits
            if job in self.jobs and job.has(sequence) and job.done < common:
                return False
            pending.awaits = None
            self._start_restore(pending)
        return pending.restore is None or pending.restore.ready

    # Jobs.

    def _open(self, first: PendingPrefill, seconds: float, alone: bool) -> PrefillBatch:
        """Begin a job with the first prompt, and others that can share its passes cheaply."""
        speed, layout = self._model.prefill_speed, self._model.layout
        padding = speed.overhead_tokens if layout.allows_padding else 0
        chosen = {first: self._found(first)}
        longest, done = first.tokens, chosen[first].tokens
        max_tokens = min(speed.tokens_in(seconds, done), self._max_chunk_tokens)
        others = self.pending if layout.allows_batching else []
        unfinished = len(self) - self.ready_rows
        for each in sorted(others, key=lambda each: each.due_at):
            if not alone and longest - done > _MAX_SHARED_OVERHEADS * speed.overhead_tokens:
                break
            if each is first or abs(each.tokens - first.tokens) > padding:
                continue
            if not self._may_begin(each) or self._shares_prefix(each, chosen):
                continue
            found = self._found(each)
            if abs(found.tokens - chosen[first].tokens) > padding:
                continue
            longest_then, done_then = max(longest, each.tokens), min(done, found.tokens)
            rows = len(chosen) + 1
            slots = self._free_slots(each.urgent) - unfinished
            fits = rows <= slots and rows * (longest_then - done_then) <= max_tokens
            if fits and self._accounting.fits_with_growth(self._bytes(rows, longest_then)):
                chosen[each] = found
                longest, done = longest_then, done_then
        return self._begin(chosen)

    def _begin(self, chosen: dict[PendingPrefill, PrefixMatch]) -> PrefillBatch:
        done = min(match.tokens for match in chosen.values())
        tokens = max(each.tokens for each in chosen)
        self._accounting.lend_rest(self._bytes(len(chosen), tokens))
        cache = None
        rows = [PrefillRow(each) for each in chosen]
        if self._prefix_cache is not None:
            if done:
                cache = self._prefix_cache.restored(list(chosen.values()), done, tokens)
                self.restored += [(each.id, done) for each in chosen if not each.again]
            for row, match in zip(rows, chosen.values(), strict=True):
                row.recorder = self._prefix_cache.recorder(
                    row.pending.id, match, on_disk=row.pending.in_session
                )
            self._prefix_cache.count_prompts(
                done, [each.tokens for each in chosen if not each.again]
            )
        model = self._model
        job = PrefillBatch(model.network, model.layout, rows, cache, done, model.output)
        self.jobs.append(job)
        for each in chosen:
            self._forget(each)
        for each in self.pending:
            self._await(each, [job])
        return job

    def _found(self, pending: PendingPrefill) -> PrefixMatch:
        """Find the prefix of a prompt that is in memory."""
        if self._prefix_cache is None:
            return PrefixMatch()
        return self._prefix_cache.find(pending.ids_to_prefill, in_memory=True)

    def _bytes(self, rows: int, tokens: int) -> int:
        return self._model.layout.bytes(rows, tokens)

    # Common prefixes.

    def _start_restore(self, pending: PendingPrefill) -> None:
        if self._prefix_cache is not None:
            if pending.restore is not None:
                pending.restore.close()
            pending.restore = self._prefix_cache.restore(pending.ids_to_prefill)
            self._await(pending, self.jobs)

    def _await(self, pending: PendingPrefill, jobs: Iterable[PrefillBatch]) -> None:
        """Make a prompt wait for a job with which it shares a long prefix."""
        if self._prefix_cache is None:
            return
        for job in jobs:
            for row in job.rows:
                common = self._gain(pending, row.pending)
                if common > 0 and common > job.done:
                    pending.awaits = job, row.pending.id, common
                    job.waiters_due_at = min(job.waiters_due_at, pending.due_at)
                    return

    def _shares_prefix(self, pending: PendingPrefill, others: Iterable[PendingPrefill]) -> bool:
        return any(self._gain(pending, other) > 0 for other in others)

    def _gain(self, pending: PendingPrefill, other: PendingPrefill) -> int:
        """Return how many tokens of a prompt will be cached once another is prefilled, or 0 if the
        gain is not worth the wait."""
        if self._prefix_cache is None:
            return 0
        found = pending.restore.tokens if pending.restore is not None else 0
        common = self._prefix_cache.cached_after(other.ids_to_prefill, pending.ids_to_prefill)
        min_gain = max(_MIN_CHUNK_TOKENS, self._model.prefill_speed.overhead_tokens)
        return common if common - found >= min_gain else 0

    def _forget(self, pending: PendingPrefill) -> None:
        self.pending.remove(pending)
        if pending.restore is not None:
            pending.restore.close()
            pending.restore = None
