"""Decoding: one forward pass and one sampling step for all rows of a group at a time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx

from shared.messages.stream import FinishReason
from worker.answer.constraint import AnswerMatcher
from worker.engine.batch_cache import BatchCache
from worker.engine.caches import blocks_for
from worker.engine.prefill import PendingPrefill
from worker.engine.prefix_cache import PrefixRecorder
from worker.engine.row_cache import BLOCK_TOKENS
from worker.engine.sampling import BatchLogprobs, BatchSampler, SamplingRow, mask_of
from worker.engine.sequence import GeneratedToken, TokenLogprobs

_WEIGHT_OF_NEW = 0.3
_STEPS_BEFORE_SHRINKING = 64
"""A group retains unused capacity for this many steps, because other rows often join soon."""
_MAX_STEP_RATIO = 4.0
"""A step longer than this multiple of the average is an outlier of the machine, and is capped."""


@dataclass(slots=True, eq=False)
class DecodingRow:
    """One sequence of a group.

    Attributes:
        ends: token ids that end the sequence.
        end: the end token that was sampled, if any.
        answer_ids: the generated tokens that were read, including those of earlier attempts.
        left: the number of tokens that may still be sampled.
        fresh: no token was sampled yet.
        finished: the sequence ended or was removed; tokens sampled ahead for it are discarded.
        since: the time when it got its slot.
        recorder: stores its blocks; None if nothing is cached.
    """

    pending: PendingPrefill
    ends: frozenset[int]
    recorder: PrefixRecorder | None = None
    end: list[int] = field(default_factory=list, init=False)
    answer_ids: list[int] = field(init=False)
    left: int = field(init=False)
    sampled: SamplingRow = field(init=False)
    fresh: bool = field(default=True, init=False)
    finished: bool = field(default=False, init=False)
    since: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        prepared = self.pending.prepared
        self.answer_ids = prepared.order.answer_ids
        self.left = prepared.max_tokens - len(self.answer_ids)
        self.sampled = SamplingRow(
            prepared.order.sampling, prepared.prompt_ids, list(self.answer_ids)
        )

    @property
    def id(self) -> int:
        return self.pending.id

    @property
    def priority(self) -> int:
        return self.pending.prepared.order.priority

    @property
    def client(self) -> str:
        return self.pending.prepared.order.client

    @property
    def constraint(self) -> AnswerMatcher | None:
        """The constraint on its tokens, if any."""
        sequence = self.pending.prepared.sequence
        return sequence.constraint if sequence is not None else None

    @property
    def all_ids(self) -> list[int]:
        """All known tokens, including the end token."""
        return [*self.pending.prepared.prompt_ids, *self.answer_ids, *self.end]

    def finish_recording(self) -> bool:
        """Store the remaining blocks of a row that has left its group, and close its recorder.
        Returns False while its last tokens are not read yet."""
        if self.recorder is not None:
            self.recorder.store(self.all_ids)
            if not (self.finished or self.recorder.is_stored):
                return False
            self.recorder.close()
        return True


class SampledTokens:
    """The sampled tokens of one step, one per row, still on the device."""

    def __init__(
        self, rows: Sequence[DecodingRow], tokens: mx.array, logprobs: BatchLogprobs | None
    ) -> None:
        self._rows = list(rows)
        self._tokens = tokens
        self._logprobs = logprobs
        self.has_fresh = any(row.fresh for row in rows)
        for row in rows:
            row.fresh = False

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def has_active_rows(self) -> bool:
        """Whether any of its rows is still generating."""
        return not all(row.finished for row in self._rows)

    def start_evaluation(self) -> None:
        """Start computing the tokens (`mx.async_eval`); on a CPU the call takes most of a step."""
        mx.async_eval(self._tokens, *(self._logprobs.arrays if self._logprobs else ()))

    def read(self) -> list[GeneratedToken]:
        """Wait for the device and return the tokens; marks rows that ended as finished."""
        token_ids = cast(list[int], self._tokens.tolist())
        logprobs = _read_logprobs(self._logprobs) if self._logprobs else {}
        tokens = []
        for index, (row, token_id) in enumerate(zip(self._rows, token_ids, strict=True)):
            if row.finished:
                continue
            if token_id in row.ends:
                row.finished = True
                row.end = [token_id]
                tokens.append(GeneratedToken(row.id, None, "stop", end_id=token_id))
            else:
                row.answer_ids.append(token_id)
                row.finished = len(row.answer_ids) >= row.pending.prepared.max_tokens
                reason: FinishReason | None = "length" if row.finished else None
                tokens.append(GeneratedToken(row.id, token_id, reason, logprobs.get(index)))
        return tokens


class DecodeGroup:
    """Rows that step together. Belongs to the engine thread.

    Args:
        inputs: [B] the next input token of each row.

    Attributes:
        step_s: moving average of the step time; 0 before the first step.
        virtual_time: see `fair_share`.
        stepped: the group has stepped since the last prefill of any model.
    """

    def __init__(
        self, network: Any, rows: Sequence[DecodingRow], cache: BatchCache, inputs: mx.array
    ) -> None:
        self._network = network
        self.rows = list(rows)
        self.cache = cache
        self._inputs = inputs
        self._sampler = BatchSampler()
        self._sampler.extend([row.sampled for row in rows])
        self.step_s = 0.0
        self.virtual_time = 0.0
        self.stepped = False
        self._oversized_steps = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens in the cache of each row."""
        return self.cache.rows.lengths

    # Steps.

    @property
    def is_constrained(self) -> bool:
        """Whether any row has a constraint, so that its next mask depends on its last token."""
        return any(row.constraint is not None for row in self.rows)

    def sample(self) -> SampledTokens:
        """Build the next token of every row; evaluation is not started."""
        return self.sample_next(self.forward())

    def forward(self) -> mx.array:
        """Return the logits [B, V] of the next step; call `sample_next` with them."""
        self._oversized_steps = self._oversized_steps + 1 if self._is_oversized else 0
        if self._oversized_steps > _STEPS_BEFORE_SHRINKING:
            self.fit()
        logits = self._network(self._inputs[:, None], cache=self.cache.layers)[:, -1]
        self.cache.rows.advance()
        return cast(mx.array, logits)

    def sample_next(self, logits: mx.array) -> SampledTokens:
        """Sample the next token of every row from the logits of `forward`."""
        sampled = self.sample_from(logits)
        self._record_blocks()
        self.stepped = True
        return sampled

    def sample_from(self, logits: mx.array) -> SampledTokens:
        """Sample the next token of every row from logits [B, V], without a forward pass."""
        mask = mask_of([None if row.finished else row.constraint for row in self.rows])
        tokens, logprobs = self._sampler.sample(logits, self._inputs, mask)
        self._inputs = tokens
        for row in self.rows:
            row.left -= 1
        return SampledTokens(self.rows, tokens, logprobs)

    def record_step(self, seconds: float) -> None:
        """Update the average step time."""
        average = self.step_s or seconds
        capped = min(seconds, _MAX_STEP_RATIO * average)
        self.step_s = average + _WEIGHT_OF_NEW * (capped - average)

    # Rows.

    def _record_blocks(self) -> None:
        """Record the blocks that became full."""
        for index, (row, length) in enumerate(zip(self.rows, self.lengths, strict=True)):
            if row.recorder is not None and length >= row.recorder.next_cut:
                row.recorder.cut(self.cache.layers, index, length, row.all_ids)

    def record_rest(self, rows: Collection[DecodingRow]) -> None:
        """Copy the rest of rows that are about to leave from the cache to their recorders."""
        for index, (row, length) in enumerate(zip(self.rows, self.lengths, strict=True)):
            if row.recorder is not None and row in rows:
                row.recorder.cut_rest(self.cache.layers, index, length)

    def drop(self, rows: Collection[DecodingRow]) -> None:
        """Remove rows between two steps; the cache keeps its size for a while."""
        if not rows:
            return
        indices = [index for index, row in enumerate(self.rows) if row in rows]
        order = self.cache.remove(indices)
        self.rows = [self.rows[index] for index in order]
        self._sampler.retain(order)
        self._inputs = self._inputs[mx.array(order, dtype=mx.uint32)]

    def take(self, rows: Collection[DecodingRow]) -> "DecodeGroup":
        """Move rows into a group of their own; copies their cache."""
        indices = [index for index, row in enumerate(self.rows) if row in rows]
        separate = DecodeGroup(
            self._network,
            [self.rows[index] for index in indices],
            self.cache.take(indices),
            self._inputs[mx.array(indices, dtype=mx.uint32)],
        )
        self.drop(rows)
        return separate

    def absorb(self, other: "DecodeGroup") -> None:
        """Append all rows of another group; the cache must have the capacity."""
        self.cache.extend(other.cache)
        self.rows += other.rows
        self._sampler.extend(other._sampler.release())
        self._inputs = mx.concatenate([self._inputs, other._inputs])

    # Capacity.

    @property
    def required_size(self) -> tuple[int, int]:
        """The minimum slots and width for the next step."""
        return len(self.rows), blocks_for(self.cache.rows.longest + 1)

    @property
    def _is_oversized(self) -> bool:
        """Whether half the slots or half the width would suffice."""
        slots, width = self.required_size
        return 2 * slots <= self.cache.slots or 2 * width <= self.cache.width

    @property
    def has_capacity(self) -> bool:
        """Whether the next step fits into the cache."""
        return self.cache.width >= self.required_size[1]

    @property
    def growth_bytes(self) -> int:
        """The bytes of growing by one block of width, including the temporary copy of a layer."""
        cache = self.cache
        grown = cache.bytes_at(cache.slots, cache.width + BLOCK_TOKENS)
        return grown - cache.nbytes + cache.layer_bytes

    def bytes_of(self, rows: Collection[DecodingRow]) -> int:
        """Return the bytes of a separate cache for some of the rows."""
        lengths = [
            length for row, length in zip(self.rows, self.lengths, strict=True) if row in rows
        ]
        return self.cache.bytes_at(len(lengths), blocks_for(max(lengths) + 1))

    def grow(self) -> None:
        """Grow the cache to the width of the next step."""
        self.cache.resize(self.cache.slots, self.required_size[1])

    def fit(self) -> None:
        """Release the slots and the width that the next step does not need."""
        slots, width = self.required_size
        self.cache.resize(slots, min(width, self.cache.width))


def _read_logprobs(logprobs: BatchLogprobs) -> dict[int, TokenLogprobs]:
    """Return log-probabilities by the row's index in the batch."""
    sampled = cast(list[float], logprobs.sampled.tolist())
    top_ids = cast(list[list[int]], logprobs.top_ids.tolist())
    top = cast(list[list[float]], logprobs.top.tolist())
    return {
        row: TokenLogprobs(sampled[i], list(zip(top_ids[i], top[i], strict=True)))
        for i, row in enumerate(logprobs.rows)
    }
