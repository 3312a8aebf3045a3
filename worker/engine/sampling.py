"""Samples the next tokens of a batch, each row with its own parameters.

A sampled token is a function of the row's logits, parameters, seed and position alone, so that a
row gives the same token alone, in a batch, or on another worker. The order is vLLM's:
penalties and bias on the logits, then temperature, min-p, top-k, top-p.

Features that no row of a batch requests cost nothing: a greedy batch is one argmax, and
log-probabilities are computed only for the rows that request them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from worker.answer.constraint import AnswerMatcher, Bitmask
from worker.engine.penalties import (
    LogitBias,
    PresenceAndFrequencyPenalty,
    RepetitionPenalty,
    put,
    take,
)
from worker.engine.token_sampling import (
    CANDIDATES,
    SamplingGroup,
    limiting_top_k,
    sample_filtered,
    sample_full_vocabulary,
    sample_plain,
    top_tokens,
)
from worker.link.orders import Sampling

_WORD = 32


class TokenMask:
    """The mask of N rows of a batch.

    Args:
        rows: their indices in the batch.
        bitmask: [N, W] one bit per token, set if it is allowed; tokens beyond its end are not.
    """

    def __init__(self, rows: Sequence[int], bitmask: Bitmask) -> None:
        self._rows = list(rows)
        self._bitmask = mx.array(bitmask.view(np.uint32))

    def apply(self, logits: mx.array) -> mx.array:
        """Return the logits [B, V], with minus infinity for tokens that are not allowed."""
        rows, vocabulary = len(self._rows), logits.shape[-1]
        bits = (self._bitmask[:, :, None] >> mx.arange(_WORD, dtype=mx.uint32)) & 1
        allowed = bits.reshape(rows, -1)[:, :vocabulary] != 0
        if (missing := vocabulary - allowed.shape[-1]) > 0:
            allowed = mx.pad(allowed, [(0, 0), (0, missing)])
        masked = mx.where(allowed, take(logits, self._rows), -mx.inf)
        return put(logits, self._rows, masked.astype(logits.dtype))


def mask_of(constraints: Sequence[AnswerMatcher | None]) -> TokenMask | None:
    """Return the mask of rows with these constraints; None if every token is allowed."""
    masking = [
        (index, each)
        for index, each in enumerate(constraints)
        if each is not None and each.restricts
    ]
    if not masking:
        return None
    bitmask = np.zeros((len(masking), masking[0][1].mask_words), dtype=np.int32)
    for row, (_, constraint) in enumerate(masking):
        constraint.write_mask(bitmask, row)
    return TokenMask([index for index, _ in masking], bitmask)


_GREEDY_BELOW = 1e-5
"""Dividing by a smaller temperature overflows float32 (vLLM has the same threshold), and a smaller
top-p can round to 0."""


@dataclass(frozen=True, slots=True)
class BatchLogprobs:
    """Log-probabilities of the L rows that requested them, still on the device.

    Attributes:
        rows: their indices in the batch.
        sampled: [L] of the sampled tokens, after penalties and bias, before the temperature.
        top_ids, top: [L, K] of the likeliest tokens, the likeliest first; K is the maximum that any
            row requested.
    """

    rows: list[int]
    sampled: mx.array
    top_ids: mx.array
    top: mx.array

    @property
    def arrays(self) -> list[mx.array]:
        return [self.sampled, self.top_ids, self.top]


@dataclass(slots=True)
class SamplingRow:
    """One sequence of the batch as the sampler sees it; see `penalties.PenaltyRow`.

    `position` is the index of the next sampled token in the answer.
    """

    sampling: Sampling
    prompt_ids: Sequence[int]
    answer_ids: Sequence[int] = ()
    position: int = field(init=False)
    fresh: bool = field(init=False, default=True)
    seen: mx.array | None = field(init=False, default=None)
    counts: mx.array | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.position = len(self.answer_ids)

    @property
    def greedy(self) -> bool:
        sampling = self.sampling
        return min(sampling.temperature, sampling.top_p) < _GREEDY_BELOW or sampling.top_k == 1


class BatchSampler:
    """Samples a token for each row. Belongs to the engine thread."""

    def __init__(self) -> None:
        self._rows: list[SamplingRow] = []
        self._plan: _Plan | None = None

    def extend(self, rows: Sequence[SamplingRow]) -> None:
        """Append rows to the batch."""
        self._dissolve_plan()
        self._rows.extend(rows)

    def release(self) -> list[SamplingRow]:
        """Remove and return all rows, with their penalty state."""
        self._dissolve_plan()
        rows, self._rows = self._rows, []
        return rows

    def retain(self, indices: Sequence[int]) -> None:
        """Drop all other rows; the order becomes that of `indices`."""
        self._dissolve_plan()
        self._rows = [self._rows[index] for index in indices]

    def sample(
        self, logits: mx.array, inputs: mx.array, mask: TokenMask | None = None
    ) -> tuple[mx.array, BatchLogprobs | None]:
        """Sample the next token of each row.

        Args:
            logits: [B, V].
            inputs: [B] the last tokens, as this sampler sampled them, unless a row is new.
            mask: the allowed tokens; log-probabilities are computed without the mask.

        Returns:
            [B] tokens, still on the device, and the requested log-probabilities.
        """
        if self._plan is None:
            self._plan = _Plan(self._rows, logits.shape[-1])
        processed = self._plan.process(logits, inputs)
        tokens = self._plan.sample(processed if mask is None else mask.apply(processed))
        logprobs = self._plan.logprobs(processed, tokens)
        for row in self._rows:
            row.position += 1
            row.fresh = False
        return tokens, logprobs

    def _dissolve_plan(self) -> None:
        if self._plan is not None:
            self._plan.save_state()
            self._plan = None


class _Plan:
    """The sampling parameters of one set of rows, as arrays; rebuilt when rows join or leave."""

    def __init__(self, rows: Sequence[SamplingRow], vocabulary: int) -> None:
        self._rows = rows
        self._repetition = RepetitionPenalty(rows, vocabulary)
        self._presence_and_frequency = PresenceAndFrequencyPenalty(rows, vocabulary)
        self._bias = LogitBias(rows)
        by_method: dict[str, list[int]] = {"greedy": [], "plain": [], "filtered": [], "wide": []}
        for index, row in enumerate(rows):
            by_method[_method(row, vocabulary)].append(index)
        self._any_greedy = bool(by_method["greedy"])
        self._samplers = [
            (sample, _group(by_method[method], rows, vocabulary))
            for method, sample in (
                ("plain", sample_plain),
                ("filtered", sample_filtered),
                ("wide", sample_full_vocabulary),
            )
            if by_method[method]
        ]
        self._with_logprobs = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
        self._top = max((rows[i].sampling.logprobs or 0 for i in self._with_logprobs), default=0)

    def save_state(self) -> None:
        self._repetition.save_state()
        self._presence_and_frequency.save_state()

    def process(self, logits: mx.array, inputs: mx.array) -> mx.array:
        """Return the logits [B, V] after penalties and bias, in float32 if any row has some:
        rounding must not depend on the parameters of other rows."""
        if any(map(bool, (self._repetition, self._presence_and_frequency, self._bias))):
            logits = logits.astype(mx.float32)
        logits = self._repetition.apply(logits, inputs)
        logits = self._presence_and_frequency.apply(logits, inputs)
        return self._bias.apply(logits)

    def sample(self, logits: mx.array) -> mx.array:
        tokens = (
            mx.argmax(logits, axis=-1).astype(mx.uint32)
            if self._any_greedy
            else mx.zeros(logits.shape[0], dtype=mx.uint32)
        )
        positions = [row.position for row in self._rows]
        for sample, group in self._samplers:
            scores = take(logits, group.indices).astype(mx.float32) / group.temperature
            sampled = sample(scores, group.keys(positions), group).astype(mx.uint32)
            tokens = put(tokens, group.indices, sampled)
        return tokens

    def logprobs(self, logits: mx.array, tokens: mx.array) -> BatchLogprobs | None:
        if not self._with_logprobs:
            return None
        selected = take(logits, self._with_logprobs).astype(mx.float32)
        logprobs = selected - mx.logsumexp(selected, axis=-1, keepdims=True)
        ids = take(tokens, self._with_logprobs)[:, None]
        sampled = mx.take_along_axis(logprobs, ids, axis=-1)[:, 0]
        top_ids, top = top_tokens(logprobs, min(self._top, logprobs.shape[-1]))
        return BatchLogprobs(self._with_logprobs, sampled, top_ids, top)


def _method(row: SamplingRow, vocabulary: int) -> str:
    top_k = limiting_top_k(row.sampling, vocabulary)
    if row.greedy:
        return "greedy"
    if row.sampling.top_p >= 1 and top_k == 0:
        return "plain"
    return "wide" if top_k > CANDIDATES else "filtered"


def _group(indices: list[int], rows: Sequence[SamplingRow], vocabulary: int) -> SamplingGroup:
    return SamplingGroup(indices, [rows[index].sampling for index in indices], vocabulary)
