"""The prompts of one model: those that wait, those on their way into the KV cache, who is next."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel
from worker.engine.prefill import PendingPrefill, PrefillJob, PrefillRow
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.kv_memory.block_tree import PrefixMatch

_STRETCH = 40.0
"""A prompt is due after so many times the time it takes alone: short ones go before long ones,
but not for ever."""

_HEAD_START_S = 10.0
"""And so much later for each priority below high: such a prompt goes before what comes later."""

_MIN_CHUNK_TOKENS = 8
_SMALL_REST = 0.5
"""A rest that takes this share of the fixed part of a pass goes with what comes before it."""
_WORTH_SHARING = 4
"""Prompts of up to so many times the tokens that the fixed part of a pass is worth go together
while others decode; while nobody does, all that the time holds: they will step together, too."""


class Prefilling:
    """Belongs to the engine thread.

    Args:
        room: how many more sequences may begin; of high priority, or of any. One that is overdue
            may begin without: it will take the place of another.
        kept: what is kept of texts; None where nothing is.

    Attributes:
        pending: prompts that wait.
        jobs: those on their way, and those that are complete and wait for a place among the rows.
        restored: sequences and how many of their tokens were there already, since somebody
            looked.
    """

    def __init__(
        self,
        model: LoadedModel,
        accounting: KVAccounting,
        kept: PrefixCache | None,
        *,
        max_chunk_tokens: int,
        room: Callable[[bool], int],
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._accounting = accounting
        self._kept = kept
        self._max_chunk_tokens = max_chunk_tokens
        self._room = room
        self._clock = clock
        self.pending: list[PendingPrefill] = []
        self.jobs: list[PrefillJob] = []
        self.restored: list[tuple[int, int]] = []

    def close(self) -> None:
        """Nobody may begin any more. Whoever knows the room would else be held here, and the
        model's memory with it, until garbage is collected."""
        self._room = lambda _: 0

    def __len__(self) -> int:
        """Sequences on their way, or complete."""
        return sum(len(job.rows) for job in self.jobs)

    @property
    def complete(self) -> list[PrefillJob]:
        """Those that wait for a place."""
        return [job for job in self.jobs if job.complete]

    @property
    def ready_rows(self) -> int:
        """Rows that wait for a place."""
        return sum(len(job.rows) for job in self.complete)

    @property
    def coming(self) -> list[int]:
        """Tokens of each that may join those that decode before any of them leaves."""
        pending = sorted(self.pending, key=lambda each: each.due_at)[: max(0, self._room(False))]
        return [len(row.ids) for job in self.jobs for row in job.rows] + [
            each.tokens for each in pending
        ]

    def add(self, prepared: PreparedSequence) -> None:
        """Queue a sequence."""
        now = self._clock()
        pending = PendingPrefill(prepared, now, now, now)
        self._recall(pending)
        pending.overdue_at += _STRETCH * self.seconds(pending)
        pending.due_at = pending.overdue_at + _HEAD_START_S * prepared.order.priority
        self.pending.append(pending)

    def seconds(self, pending: PendingPrefill) -> float:
        """What the prefill of one that waits takes alone."""
        return self._model.prefill_speed.seconds(pending.left + 1)

    def add_again(self, pending: PendingPrefill, prepared: PreparedSequence) -> None:
        """Queue one that gave way, with what it has generated."""
        again = replace(pending, prepared=prepared, again=True, recall=None, awaits=None)
        self._recall(again)
        self.pending.append(again)

    def remove(self, sequence: int) -> None:
        """Drop a sequence; unknown ones are ignored."""
        for each in [each for each in self.pending if each.id == sequence]:
            self._forget(each)
        self._leave_job(sequence)

    def take_back(self, sequence: int) -> PendingPrefill | None:
        """Take a sequence that is on its way out, with its memory; None when it is not here."""
        for job in self.jobs:
            for row in job.rows:
                if row.pending.id == sequence:
                    job.keep()
                    self._leave_job(sequence)
                    return row.pending
        return None

    def _leave_job(self, sequence: int) -> None:
        for job in self.jobs:
            job.remove(sequence)
        self.jobs = [job for job in self.jobs if job.rows]

    # Who is next.

    @property
    def next_due(self) -> float | None:
        """When the prompt is due that may be prefilled next; None if there is none."""
        first = self._next()
        return first.due_at if first is not None else None

    def pays(self, seconds: float) -> bool:
        """Whether so much time holds a chunk that is worth its pass: the rest of what is due
        first, or as much as the fixed part of a pass."""
        first, speed = self._next(), self._model.prefill_speed
        assert first is not None
        if isinstance(first, PendingPrefill):
            context, left, rows = first.tokens - 1 - first.left, first.left, 1
        else:
            context, left, rows = first.done, first.left, len(first.rows)
        worth = max(_MIN_CHUNK_TOKENS, speed.floor_tokens // rows)
        return speed.tokens_in(seconds, context) // rows >= min(left, worth)

    def advance(
        self,
        seconds: float,
        begins: Callable[[list[int]], None] = lambda _: None,
        *,
        alone: bool,
    ) -> PrefillJob:
        """Prefill a chunk that takes about so long, and never nothing, of what is due first; where
        nobody decodes, it is `alone`. `begins` hears which sequences the pass is for."""
        first = self._next()
        assert first is not None
        job = self._open(first, seconds, alone) if isinstance(first, PendingPrefill) else first
        rows, speed = len(job.rows), self._model.prefill_speed
        wanted = speed.tokens_in(seconds, job.done) // rows
        if (job.left - wanted) * rows <= _SMALL_REST * speed.floor_tokens:
            wanted = job.left
        count = min(max(wanted, _MIN_CHUNK_TOKENS), self._max_chunk_tokens // rows, job.left)
        if self._kept is not None:
            count = min(count, self._kept.until_snapshot(job.done))
        begins([row.pending.id for row in job.rows])
        context, tokens = job.done, count * rows
        began_at = self._clock()
        job.advance(count)
        took_s = self._clock() - began_at
        for row in job.rows:
            row.pending.prefill_s += took_s / rows
        if tokens >= _MIN_CHUNK_TOKENS:
            speed.measured(tokens, context, took_s)
        if job.complete:
            job.keep_rest()
        else:
            job.keep()
        return job

    def _next(self) -> PrefillJob | PendingPrefill | None:
        """What is due first: a job that has begun, or a prompt that may begin."""
        unfinished = (job for job in self.jobs if not job.complete)
        job = min(unfinished, key=lambda job: job.due_at, default=None)
        pending = self._admissible()
        if job is None or (pending is not None and pending.due_at < job.due_at):
            return pending
        return job

    def _admissible(self) -> PendingPrefill | None:
        """The one that is due first of those that may begin, if there is room for it."""
        ready = [each for each in self.pending if self._may_begin(each)]
        first = min(ready, key=lambda each: each.due_at, default=None)
        if first is None:
            return None
        may_take_a_place = first.overdue_at <= self._clock()
        if self._room(first.urgent) < 1 and not may_take_a_place:
            return None
        return first if self._accounting.admits(self._bytes(1, first.tokens)) else None

    def _may_begin(self, pending: PendingPrefill) -> bool:
        """Not while what it begins with is on its way: from disk, or in a job."""
        if pending.awaits is not None:
            job, sequence, common = pending.awaits
            if job in self.jobs and job.has(sequence) and job.done < common:
                return False
            pending.awaits = None
            self._recall(pending)
        return pending.recall is None or pending.recall.ready

    # Jobs.

    def _open(self, first: PendingPrefill, seconds: float, alone: bool) -> PrefillJob:
        """The first, and others as far as they share a pass with profit."""
        speed, layout = self._model.prefill_speed, self._model.layout
        padding = speed.floor_tokens if layout.allows_padding else 0
        chosen = {first: self._found(first)}
        longest, done = first.tokens, chosen[first].tokens
        most_tokens = min(speed.tokens_in(seconds, done), self._max_chunk_tokens)
        others = self.pending if layout.allows_batching else []
        unfinished = len(self) - self.ready_rows
        for each in sorted(others, key=lambda each: each.due_at):
            if not alone and longest - done > _WORTH_SHARING * speed.floor_tokens:
                break
            if each is first or abs(each.tokens - first.tokens) > padding:
                continue
            if not self._may_begin(each) or self._shared(each, chosen):
                continue
            found = self._found(each)
            if abs(found.tokens - chosen[first].tokens) > padding:
                continue
            longest_then, done_then = max(longest, each.tokens), min(done, found.tokens)
            rows = len(chosen) + 1
            room = self._room(each.urgent) - unfinished
            fits = rows <= room and rows * (longest_then - done_then) <= most_tokens
            if fits and self._accounting.has_room(self._bytes(rows, longest_then)):
                chosen[each] = found
                longest, done = longest_then, done_then
        return self._begin(chosen)

    def _begin(self, chosen: dict[PendingPrefill, PrefixMatch]) -> PrefillJob:
        done = min(match.tokens for match in chosen.values())
        tokens = max(each.tokens for each in chosen)
        self._accounting.lend_rest(self._bytes(len(chosen), tokens))
        cache = None
        rows = [PrefillRow(each) for each in chosen]
        if self._kept is not None:
            if done:
                cache = self._kept.restored(list(chosen.values()), done, tokens)
                self.restored += [(each.id, done) for each in chosen if not each.again]
            for row, match in zip(rows, chosen.values(), strict=True):
                row.recorder = self._kept.recorder(
                    row.pending.id, match, on_disk=row.pending.in_session
                )
            self._kept.note(done, [each.tokens for each in chosen if not each.again])
        model = self._model
        job = PrefillJob(model.network, model.layout, rows, cache, done, model.output)
        self.jobs.append(job)
        for each in chosen:
            self._forget(each)
        for each in self.pending:
            self._await(each, [job])
        return job

    def _found(self, pending: PendingPrefill) -> PrefixMatch:
        """What of a prompt is in memory."""
        if self._kept is None:
            return PrefixMatch()
        return self._kept.find(pending.ids_to_prefill, in_memory=True)

    def _bytes(self, rows: int, tokens: int) -> int:
        return self._model.layout.bytes(rows, tokens)

    # What prompts have in common.

    def _recall(self, pending: PendingPrefill) -> None:
        if self._kept is not None:
            if pending.recall is not None:
                pending.recall.close()
            pending.recall = self._kept.recall(pending.ids_to_prefill)
            self._await(pending, self.jobs)

    def _await(self, pending: PendingPrefill, jobs: Iterable[PrefillJob]) -> None:
        """Have a prompt wait for one with which it has much in common."""
        if self._kept is None:
            return
        for job in jobs:
            for row in job.rows:
                common = self._gain(pending, row.pending)
                if common > 0 and common > job.done:
                    pending.awaits = job, row.pending.id, common
                    job.wanted_at = min(job.wanted_at, pending.due_at)
                    return

    def _shared(self, pending: PendingPrefill, others: Iterable[PendingPrefill]) -> bool:
        return any(self._gain(pending, other) > 0 for other in others)

    def _gain(self, pending: PendingPrefill, other: PendingPrefill) -> int:
        """How many tokens a prompt will find kept once another is prefilled, if that is worth
        the wait; else 0."""
        if self._kept is None:
            return 0
        found = pending.recall.tokens if pending.recall is not None else 0
        common = self._kept.kept_of(other.ids_to_prefill, pending.ids_to_prefill)
        worth = max(_MIN_CHUNK_TOKENS, self._model.prefill_speed.floor_tokens)
        return common if common - found >= worth else 0

    def _forget(self, pending: PendingPrefill) -> None:
        self.pending.remove(pending)
        if pending.recall is not None:
            pending.recall.close()
            pending.recall = None
