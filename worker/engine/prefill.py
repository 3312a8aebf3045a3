"""Prompts on their way into the KV cache, a chunk at a time; of the output layer only what comes
after each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from worker.engine.batch_cache import BatchCache
from worker.engine.caches import Cache, CacheLayout, evaluate, keep_rows
from worker.engine.output_layer import OutputLayer
from worker.engine.prefix_cache import PrefixRecorder, PrefixRestore
from worker.engine.prompt import PreparedSequence
from worker.kv_memory.block import TokenIds, token_array


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`done` of `total` prompt tokens of a sequence are in the KV cache."""

    sequence: int
    done: int
    total: int


@dataclass(slots=True, eq=False)
class PendingPrefill:
    """A sequence whose tokens are to be prefilled; again, if it was preempted.

    Attributes:
        arrived_at: when it first came, on the monotonic clock.
        due_at: who is due first is prefilled first.
        overdue_at: when it need not wait for a place any more, but may take one.
        recall: what is kept of its text.
        again: it had begun before.
        prefill_s: what its prefill took until now, its share of passes with others.
        awaits: a job with a sequence that has so many first tokens in common with this one: once
            they are there, they are not computed again.
    """

    prepared: PreparedSequence
    arrived_at: float
    due_at: float
    overdue_at: float
    again: bool = False
    prefill_s: float = 0.0
    recall: PrefixRestore | None = None
    awaits: "tuple[PrefillJob, int, int] | None" = None
    ids_to_prefill: TokenIds = field(init=False)

    def __post_init__(self) -> None:
        self.ids_to_prefill = token_array(self.prepared.all_ids[:-1])

    @property
    def id(self) -> int:
        return self.prepared.order.sequence

    @property
    def tokens(self) -> int:
        return len(self.prepared.all_ids)

    @property
    def left(self) -> int:
        """Tokens to be prefilled, as far as is known."""
        return self.tokens - 1 - (self.recall.tokens if self.recall else 0)

    @property
    def urgent(self) -> bool:
        """Of the highest priority."""
        return self.prepared.order.priority == 0

    @property
    def in_session(self) -> bool:
        return self.prepared.order.session is not None


@dataclass(slots=True)
class PrefillRow:
    """A sequence of a job.

    Attributes:
        trail: how far its text is kept; None where nothing is.
        logits: [V] of what comes after it; None as long as its last token is not in the cache.
    """

    pending: PendingPrefill
    recorder: PrefixRecorder | None = None
    logits: mx.array | None = field(default=None, init=False)
    ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = self.pending.prepared.all_ids


class PrefillJob:
    """Sequences that go into one cache together: all their tokens but the last, which is the
    first input of decoding; with an output layer the last ones too, in the same pass as what is
    before them. Shorter ones are padded at their ends.

    Belongs to the engine thread.

    Args:
        cache: has the first `done` tokens of each already, and room for all.
        output: of the network; None where it cannot be used alone.

    Attributes:
        wanted_at: when somebody is due who waits for it.
    """

    def __init__(
        self,
        network: Any,
        layout: CacheLayout,
        rows: Sequence[PrefillRow],
        cache: Cache | None = None,
        done: int = 0,
        output: OutputLayer | None = None,
    ) -> None:
        self._network = network
        self._output = output
        self.rows = list(rows)
        self._room = self._longest
        self.cache = layout.new_cache(len(rows), self._room) if cache is None else cache
        self._layout = layout
        self.done = done
        self.wanted_at = math.inf
        self._kept_rest = False

    @property
    def pending(self) -> list[PendingPrefill]:
        return [row.pending for row in self.rows]

    @property
    def due_at(self) -> float:
        return min(self.wanted_at, *(row.pending.due_at for row in self.rows))

    def has(self, sequence: int) -> bool:
        return any(row.pending.id == sequence for row in self.rows)

    @property
    def reserved_bytes(self) -> int:
        """What its cache takes when it is full."""
        return self._layout.bytes(len(self.rows), self._room)

    @property
    def _longest(self) -> int:
        return max(len(row.ids) for row in self.rows)

    @property
    def complete(self) -> bool:
        return self.left == 0

    @property
    def inputs(self) -> list[int]:
        """[B] the last token of each."""
        return [row.ids[-1] for row in self.rows]

    @property
    def left(self) -> int:
        """Tokens of each row that are still to be prefilled, without the last one."""
        return max(0, self._longest - 1 - self.done)

    @property
    def logits(self) -> mx.array | None:
        """[B, V] of what comes after each; None where that of any is not known."""
        logits = [row.logits for row in self.rows if row.logits is not None]
        return mx.stack(logits) if len(logits) == len(self.rows) else None

    def advance(self, count: int) -> None:
        """Put the next `count` tokens of each into the cache."""
        until = self.done + min(count, self.left)
        if until == self.done:
            return
        if self._output is not None and until == self._longest - 1:
            until += 1
        tokens = mx.array([_slice(row.ids, self.done, until) for row in self.rows])
        ending = [n for n, row in enumerate(self.rows) if self.done < len(row.ids) <= until]
        if self._output is not None and ending:
            places = [(n, len(self.rows[n].ids) - 1 - self.done) for n in ending]
            logits = self._output.logits(self._network, tokens, self.cache, places)
            mx.async_eval(logits)
            for number, place in enumerate(ending):
                self.rows[place].logits = logits[number]
        else:
            self._network(tokens, cache=self.cache)  # the logits are never computed
        evaluate(self.cache)
        mx.clear_cache()
        self.done = until

    def keep(self) -> None:
        """File the blocks that became full."""
        for place, row in enumerate(self.rows):
            length = min(self.done, len(row.ids) - 1)
            if row.recorder is not None and length >= row.recorder.next_cut:
                row.recorder.cut(self.cache, place, length, row.ids)

    def keep_rest(self) -> None:
        """File all that is complete, once."""
        if self._kept_rest:
            return
        self._kept_rest = True
        for place, row in enumerate(self.rows):
            if row.recorder is not None:
                length = len(row.ids) - 1
                row.recorder.cut(self.cache, place, length, row.ids)
                row.recorder.cut_rest(self.cache, place, length)
                row.recorder.file(row.ids)

    def remove(self, sequence: int) -> None:
        """Drop a sequence; unknown ones are ignored."""
        stay = [place for place, row in enumerate(self.rows) if row.pending.id != sequence]
        if len(stay) < len(self.rows):
            for row in self.rows:
                if row.pending.id == sequence and row.recorder is not None:
                    row.recorder.close()
            self.rows = [self.rows[place] for place in stay]
            if stay:
                self._room = max(self._longest, self.done)
                keep_rows(self.cache, stay, self._room)

    def progress(self) -> list[PrefillProgress]:
        return [
            PrefillProgress(row.pending.id, min(self.done, len(row.ids) - 1), len(row.ids))
            for row in self.rows
        ]

    def release_caches(self) -> BatchCache:
        """The cache of what is complete, for decoding; without the last tokens where there are no
        `logits`."""
        without = self.logits is None
        lengths = [len(row.ids) - without for row in self.rows]
        return BatchCache.of(self.cache, lengths, self._layout)


def _slice(tokens: Sequence[int], begin: int, end: int) -> list[int]:
    part = list(tokens[begin:end])
    return part + [0] * (end - begin - len(part))
