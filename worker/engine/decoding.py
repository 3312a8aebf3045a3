"""The rows that generate: one forward pass and one draw for all rows of a group at a time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx

from shared.messages.stream import FinishReason
from worker.answer.constraint import Constraint
from worker.engine.batch_cache import BatchCache
from worker.engine.caches import blocks_for
from worker.engine.prefill import PendingPrefill
from worker.engine.prefix_cache import PrefixRecorder
from worker.engine.row_cache import BLOCK_TOKENS
from worker.engine.sampling import BatchSampler, Logprobs, SampledRow
from worker.engine.token_mask import mask_of
from worker.engine.tokens import Token, TokenLogprobs

_WEIGHT_OF_NEW = 0.3
_PATIENT_STEPS = 64
"""So many steps long a group keeps room that it does not need: others often come soon."""
_LONGEST_OF_USUAL = 4.0
"""A step of more than so many times the usual tells of the machine, not of the group."""


@dataclass(slots=True, eq=False)
class DecodingRow:
    """One sequence of a group.

    Attributes:
        ends: tokens that end it.
        end: the one that did.
        answer_ids: what was generated and read, by earlier attempts too.
        left: tokens that may still be drawn.
        fresh: nothing was drawn yet.
        gone: it ended or was removed; what was drawn for it ahead is of no use.
        since: when it got its place among those that decode, or lost it.
        trail: how far its text is kept; None where nothing is.
    """

    pending: PendingPrefill
    ends: frozenset[int]
    recorder: PrefixRecorder | None = None
    end: list[int] = field(default_factory=list, init=False)
    answer_ids: list[int] = field(init=False)
    left: int = field(init=False)
    sampled: SampledRow = field(init=False)
    fresh: bool = field(default=True, init=False)
    gone: bool = field(default=False, init=False)
    since: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        prepared = self.pending.prepared
        self.answer_ids = prepared.order.answer_ids
        self.left = prepared.max_tokens - len(self.answer_ids)
        self.sampled = SampledRow(
            prepared.order.sampling, prepared.prompt_ids, list(self.answer_ids)
        )

    @property
    def id(self) -> int:
        return self.pending.id

    @property
    def priority(self) -> int:
        return self.pending.prepared.order.priority

    @property
    def constraint(self) -> Constraint | None:
        """What its tokens are bound to."""
        sequence = self.pending.prepared.sequence
        return sequence.constraint if sequence is not None else None

    @property
    def text_ids(self) -> list[int]:
        """All tokens that are known, the one that ended it too."""
        return [*self.pending.prepared.prompt_ids, *self.answer_ids, *self.end]

    def settle(self) -> bool:
        """File what is kept of a row that has left its group, and let that be all; False while
        its last tokens are not read."""
        if self.recorder is not None:
            self.recorder.file(self.text_ids)
            if not (self.gone or self.recorder.filed):
                return False
            self.recorder.close()
        return True


class SampledTokens:
    """Tokens that nobody has read: one for each row."""

    def __init__(
        self, rows: Sequence[DecodingRow], tokens: mx.array, logprobs: Logprobs | None
    ) -> None:
        self._rows = list(rows)
        self._tokens = tokens
        self._logprobs = logprobs
        self.has_fresh = any(row.fresh for row in rows)
        for row in rows:
            row.fresh = False

    def __len__(self) -> int:
        """Rows."""
        return len(self._rows)

    @property
    def is_wanted(self) -> bool:
        """Whether any of its rows is still generating."""
        return not all(row.gone for row in self._rows)

    def ask(self) -> None:
        """Have the device compute them; on a CPU that takes most of a step."""
        mx.async_eval(self._tokens, *(self._logprobs.arrays if self._logprobs else ()))

    def read(self) -> list[Token]:
        """Wait for the device; rows that ended are marked as gone."""
        token_ids = cast(list[int], self._tokens.tolist())
        logprobs = _read_logprobs(self._logprobs) if self._logprobs else {}
        tokens = []
        for place, (row, token_id) in enumerate(zip(self._rows, token_ids, strict=True)):
            if row.gone:
                continue
            if token_id in row.ends:
                row.gone = True
                row.end = [token_id]
                tokens.append(Token(row.id, None, "stop", end_id=token_id))
            else:
                row.answer_ids.append(token_id)
                row.gone = len(row.answer_ids) >= row.pending.prepared.max_tokens
                reason: FinishReason | None = "length" if row.gone else None
                tokens.append(Token(row.id, token_id, reason, logprobs.get(place)))
        return tokens


class DecodeGroup:
    """Rows that step together. Belongs to the engine thread.

    Args:
        inputs: [B] each row's next input.

    Attributes:
        step_s: how long a step takes, lately; 0 before the first.
        turn: see `turns`.
        stepped: since the last prefill of whatever model.
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
        self.turn = 0.0
        self.stepped = False
        self._roomy_steps = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> list[int]:
        """Tokens in the cache of each row."""
        return self.cache.rows.lengths

    # Steps.

    @property
    def is_constrained(self) -> bool:
        """Whether what a row may get depends on what it got last."""
        return any(row.constraint is not None for row in self.rows)

    def sample(self) -> SampledTokens:
        """The next token of every row, for which the device is to be asked."""
        return self.sample_next(self.forward())

    def forward(self) -> mx.array:
        """[B, V] the logits of the next step; `sample_next` comes then."""
        self._roomy_steps = self._roomy_steps + 1 if self._is_roomy else 0
        if self._roomy_steps > _PATIENT_STEPS:
            self.fit()
        logits = self._network(self._inputs[:, None], cache=self.cache.layers)[:, -1]
        self.cache.rows.advance()
        return cast(mx.array, logits)

    def sample_next(self, logits: mx.array) -> SampledTokens:
        """The next token of every row, from `forward`."""
        sampled = self.sample_from(logits)
        self._keep()
        self.stepped = True
        return sampled

    def sample_from(self, logits: mx.array) -> SampledTokens:
        """The next token of every row from what is known already: [B, V]."""
        mask = mask_of([None if row.gone else row.constraint for row in self.rows])
        tokens, logprobs = self._sampler.sample(logits, self._inputs, mask)
        self._inputs = tokens
        for row in self.rows:
            row.left -= 1
        return SampledTokens(self.rows, tokens, logprobs)

    def took(self, seconds: float) -> None:
        """A step took so long."""
        usual = self.step_s or seconds
        counted = min(seconds, _LONGEST_OF_USUAL * usual)
        self.step_s = usual + _WEIGHT_OF_NEW * (counted - usual)

    # Rows.

    def _keep(self) -> None:
        """Have the blocks that became full filed."""
        for place, (row, length) in enumerate(zip(self.rows, self.lengths, strict=True)):
            if row.recorder is not None and length >= row.recorder.next_cut:
                row.recorder.cut(self.cache.layers, place, length, row.text_ids)

    def keep_rest(self, rows: Collection[DecodingRow]) -> None:
        """Have all of rows that leave taken along for what is kept of them; they file it."""
        for place, (row, length) in enumerate(zip(self.rows, self.lengths, strict=True)):
            if row.recorder is not None and row in rows:
                row.recorder.cut_rest(self.cache.layers, place, length)

    def drop(self, rows: Collection[DecodingRow]) -> None:
        """Rows leave between two steps; their room stays for a while."""
        if not rows:
            return
        places = [place for place, row in enumerate(self.rows) if row in rows]
        order = self.cache.remove(places)
        self.rows = [self.rows[place] for place in order]
        self._sampler.keep(order)
        self._inputs = self._inputs[mx.array(order, dtype=mx.uint32)]

    def take(self, rows: Collection[DecodingRow]) -> "DecodeGroup":
        """Rows leave as a group of their own; copies their cache."""
        places = [place for place, row in enumerate(self.rows) if row in rows]
        taken = DecodeGroup(
            self._network,
            [self.rows[place] for place in places],
            self.cache.take(places),
            self._inputs[mx.array(places, dtype=mx.uint32)],
        )
        self.drop(rows)
        return taken

    def absorb(self, other: "DecodeGroup") -> None:
        """All rows of another group join; there must be room for them."""
        self.cache.extend(other.cache)
        self.rows += other.rows
        self._sampler.extend(other._sampler.release())
        self._inputs = mx.concatenate([self._inputs, other._inputs])

    # Room.

    @property
    def fitting(self) -> tuple[int, int]:
        """Slots and width that the next step needs, and no more."""
        return len(self.rows), blocks_for(self.cache.rows.longest + 1)

    @property
    def _is_roomy(self) -> bool:
        """Whether half the room or less would do."""
        slots, width = self.fitting
        return 2 * slots <= self.cache.slots or 2 * width <= self.cache.width

    @property
    def has_room(self) -> bool:
        """Whether the next step fits."""
        return self.cache.width >= self.fitting[1]

    @property
    def growth_bytes(self) -> int:
        """What the next block of width costs, whenever it is needed, and while it is made."""
        cache = self.cache
        grown = cache.bytes_at(cache.slots, cache.width + BLOCK_TOKENS)
        return grown - cache.nbytes + cache.layer_bytes

    def bytes_of(self, rows: Collection[DecodingRow]) -> int:
        """What the cache of some of the rows takes, alone."""
        lengths = [
            length for row, length in zip(self.rows, self.lengths, strict=True) if row in rows
        ]
        return self.cache.bytes_at(len(lengths), blocks_for(max(lengths) + 1))

    def grow(self) -> None:
        """Make room for the next step."""
        self.cache.resize(self.cache.slots, self.fitting[1])

    def fit(self) -> None:
        """Give back what the next step does not need."""
        slots, width = self.fitting
        self.cache.resize(slots, min(width, self.cache.width))


def _read_logprobs(logprobs: Logprobs) -> dict[int, TokenLogprobs]:
    """By the row's place in the batch."""
    sampled = cast(list[float], logprobs.sampled.tolist())
    top_ids = cast(list[list[int]], logprobs.top_ids.tolist())
    top = cast(list[list[float]], logprobs.top.tolist())
    return {
        row: TokenLogprobs(sampled[i], list(zip(top_ids[i], top[i], strict=True)))
        for i, row in enumerate(logprobs.rows)
    }
