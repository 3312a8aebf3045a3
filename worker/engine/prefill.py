"""Prefill jobs: prompts computed into a KV cache, a chunk at a time, with logits only for the last
token of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from worker.engine.batch_cache import BatchCache
from worker.engine.caches import Cache, CacheLayout, evaluate, retain_rows
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
    """A sequence that waits for prefill, for the first time or after a preemption.

    Attributes:
        arrived_at: its first arrival, on the monotonic clock.
        due_at: the sequence with the earliest due time is prefilled first.
        overdue_at: from then on it may preempt the slot of another row.
        restore: its cached prefix.
        again: it was preempted.
        prefill_s: the prefill time until now; its share of passes with other sequences.
        awaits: (job, sequence, tokens): a sequence of this job begins with the same tokens; this
            one waits until they are cached, so that they are not computed twice.
    """

    prepared: PreparedSequence
    arrived_at: float
    due_at: float
    overdue_at: float
    again: bool = False
    prefill_s: float = 0.0
    restore: PrefixRestore | None = None
    awaits: "tuple[PrefillBatch, int, int] | None" = None
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
        """The number of tokens to be prefilled, without cached ones."""
        return self.tokens - 1 - (self.restore.tokens if self.restore else 0)

    @property
    def urgent(self) -> bool:
        """Whether it has the highest priority."""
        return self.prepared.order.priority == 0

    @property
    def in_session(self) -> bool:
        return self.prepared.order.session is not None


@dataclass(slots=True)
class PrefillRow:
    """A sequence of a job.

    Attributes:
        recorder: stores its blocks; None if nothing is cached.
        logits: [V] after its last token; None until that token is in the cache.
    """

    pending: PendingPrefill
    recorder: PrefixRecorder | None = None
    logits: mx.array | None = field(default=None, init=False)
    ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = self.pending.prepared.all_ids


class PrefillBatch:
    """Sequences that are prefilled into one cache: all their tokens except the last, which is the
    first input of decoding. With an output layer the last tokens are prefilled, too, in the same
    pass as the tokens before them. Shorter sequences are padded at their ends.

    Belongs to the engine thread.

    Args:
        cache: holds the first `done` tokens of each sequence, with capacity for all tokens.
        output: the output layer of the network; None if it cannot be used for single positions.

    Attributes:
        waiters_due_at: the earliest due time of the sequences that wait for this job.
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
        self._width = self._longest
        self.cache = layout.new_cache(len(rows), self._width) if cache is None else cache
        self._layout = layout
        self.done = done
        self.waiters_due_at = math.inf
        self._rest_recorded = False

    @property
    def pending(self) -> list[PendingPrefill]:
        return [row.pending for row in self.rows]

    @property
    def due_at(self) -> float:
        return min(self.waiters_due_at, *(row.pending.due_at for row in self.rows))

    def has(self, sequence: int) -> bool:
        return any(row.pending.id == sequence for row in self.rows)

    @property
    def reserved_bytes(self) -> int:
        """The bytes of its cache when it is full."""
        return self._layout.bytes(len(self.rows), self._width)

    @property
    def _longest(self) -> int:
        return max(len(row.ids) for row in self.rows)

    @property
    def complete(self) -> bool:
        return self.left == 0

    @property
    def inputs(self) -> list[int]:
        """[B] the last token of each sequence."""
        return [row.ids[-1] for row in self.rows]

    @property
    def left(self) -> int:
        """The number of tokens per row still to be prefilled, without the last one."""
        return max(0, self._longest - 1 - self.done)

    @property
    def logits(self) -> mx.array | None:
        """[B, V] after the last token of each sequence; None if any of them is unknown."""
        logits = [row.logits for row in self.rows if row.logits is not None]
        return mx.stack(logits) if len(logits) == len(self.rows) else None

    def advance(self, count: int) -> None:
        """Compute the next `count` tokens of each sequence into the cache."""
        until = self.done + min(count, self.left)
        if until == self.done:
            return
        if self._output is not None and until == self._longest - 1:
            until += 1
        tokens = mx.array([_slice(row.ids, self.done, until) for row in self.rows])
        ending = [n for n, row in enumerate(self.rows) if self.done < len(row.ids) <= until]
        if self._output is not None and ending:
            positions = [(n, len(self.rows[n].ids) - 1 - self.done) for n in ending]
            logits = self._output.logits(self._network, tokens, self.cache, positions)
            mx.async_eval(logits)
            for number, row in enumerate(ending):
                self.rows[row].logits = logits[number]
        else:
            self._network(tokens, cache=self.cache)  # MLX is lazy: the logits are never computed
        evaluate(self.cache)
        mx.clear_cache()
        self.done = until

    def record_blocks(self) -> None:
        """Store the blocks that became full."""
        for index, row in enumerate(self.rows):
            length = min(self.done, len(row.ids) - 1)
            if row.recorder is not None and length >= row.recorder.next_cut:
                row.recorder.cut(self.cache, index, length, row.ids)

    def record_rest(self) -> None:
        """Store the rest of a complete job; does nothing if called again."""
        if self._rest_recorded:
            return
        self._rest_recorded = True
        for index, row in enumerate(self.rows):
            if row.recorder is not None:
                length = len(row.ids) - 1
                row.recorder.cut(self.cache, index, length, row.ids)
                row.recorder.cut_rest(self.cache, index, length)
                row.recorder.store(row.ids)

    def remove(self, sequence: int) -> None:
        """Drop a sequence; unknown sequences are ignored."""
        stay = [index for index, row in enumerate(self.rows) if row.pending.id != sequence]
        if len(stay) < len(self.rows):
            for row in self.rows:
                if row.pending.id == sequence and row.recorder is not None:
                    row.recorder.close()
            self.rows = [self.rows[index] for index in stay]
            if stay:
                self._width = max(self._longest, self.done)
                retain_rows(self.cache, stay, self._width)

    def progress(self) -> list[PrefillProgress]:
        return [
            PrefillProgress(row.pending.id, min(self.done, len(row.ids) - 1), len(row.ids))
            for row in self.rows
        ]

    def release_caches(self) -> BatchCache:
        """Return the cache of a complete job, for decoding; it lacks the last token of each
        sequence if `logits` is None."""
        without = self.logits is None
        lengths = [len(row.ids) - without for row in self.rows]
        return BatchCache.of(self.cache, lengths, self._layout)


def _slice(tokens: Sequence[int], begin: int, end: int) -> list[int]:
    part = list(tokens[begin:end])
    return part + [0] * (end - begin - len(part))
