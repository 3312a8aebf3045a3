"""How the next tokens of a whole batch are drawn, each row in its own way.

Every draw is a function of the row's logits, parameters, seed and position alone, so that a
row gives the same token alone, in a batch, or on another worker. The order is vLLM's:
penalties and bias on the logits, then temperature, min-p, top-k, top-p.

What a batch does not ask for costs nothing: a greedy batch is one argmax, and
log-probabilities are computed for the rows that want them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from worker.engine.penalties import Bias, PresenceAndFrequency, Repetition, put, take
from worker.engine.token_mask import TokenMask
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

_GREEDY_BELOW = 1e-5
"""Dividing by a smaller temperature overflows float32 (vLLM draws the same line), and a
smaller top-p can become 0 in it."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities for the L rows that asked, still on the device.

    Attributes:
        rows: their places in the batch.
        drawn: [L] of the drawn tokens, after penalties and bias, before the temperature.
        top_ids, top: [L, K] of the likeliest, the likeliest first; K is the most that any row
            asked for.
    """

    rows: list[int]
    sampled: mx.array
    top_ids: mx.array
    top: mx.array

    @property
    def arrays(self) -> list[mx.array]:
        return [self.sampled, self.top_ids, self.top]


@dataclass(slots=True)
class SampledRow:
    """One sequence of the batch as the sampler knows it; see `penalties.Counted`.

    `position` is the index of the token that is drawn next.
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
        how = self.sampling
        return min(how.temperature, how.top_p) < _GREEDY_BELOW or how.top_k == 1


class BatchSampler:
    """Draws a token for each row. Belongs to the engine thread."""

    def __init__(self) -> None:
        self._rows: list[SampledRow] = []
        self._plan: _Plan | None = None

    def extend(self, rows: Sequence[SampledRow]) -> None:
        """Rows join at the end of the batch."""
        self._dissolve_plan()
        self._rows.extend(rows)

    def release(self) -> list[SampledRow]:
        """Give up all rows, with what was counted for them."""
        self._dissolve_plan()
        rows, self._rows = self._rows, []
        return rows

    def keep(self, indices: Sequence[int]) -> None:
        """Only these rows stay, in this order."""
        self._dissolve_plan()
        self._rows = [self._rows[index] for index in indices]

    def sample(
        self, logits: mx.array, inputs: mx.array, mask: TokenMask | None = None
    ) -> tuple[mx.array, Logprobs | None]:
        """Draw the next token of each row.

        Args:
            logits: [B, V].
            inputs: [B] the tokens before, as this sampler drew them, unless a row is new.
            mask: what may be drawn; log-probabilities are those without it.

        Returns:
            [B] tokens, still on the device, and the log-probabilities that rows asked for.
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
            self._plan.requeue()
            self._plan = None


class _Plan:
    """What one set of rows asks for, as arrays; made anew when rows join or leave."""

    def __init__(self, rows: Sequence[SampledRow], vocabulary: int) -> None:
        self._rows = rows
        self._repetition = Repetition(rows, vocabulary)
        self._presence_and_frequency = PresenceAndFrequency(rows, vocabulary)
        self._bias = Bias(rows)
        by_way: dict[str, list[int]] = {"greedy": [], "plain": [], "filtered": [], "wide": []}
        for index, row in enumerate(rows):
            by_way[_way(row, vocabulary)].append(index)
        self._any_greedy = bool(by_way["greedy"])
        self._samplers = [
            (sample, _group(by_way[way], rows, vocabulary))
            for way, sample in (
                ("plain", sample_plain),
                ("filtered", sample_filtered),
                ("wide", sample_full_vocabulary),
            )
            if by_way[way]
        ]
        self._asking = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
        self._top = max((rows[i].sampling.logprobs or 0 for i in self._asking), default=0)

    def requeue(self) -> None:
        self._repetition.requeue()
        self._presence_and_frequency.requeue()

    def process(self, logits: mx.array, inputs: mx.array) -> mx.array:
        """[B, V] logits after penalties and bias, in float32 if there are any: rounding must
        not depend on what other rows ask for."""
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

    def logprobs(self, logits: mx.array, tokens: mx.array) -> Logprobs | None:
        if not self._asking:
            return None
        asked = take(logits, self._asking).astype(mx.float32)
        logprobs = asked - mx.logsumexp(asked, axis=-1, keepdims=True)
        ids = take(tokens, self._asking)[:, None]
        sampled = mx.take_along_axis(logprobs, ids, axis=-1)[:, 0]
        top_ids, top = top_tokens(logprobs, min(self._top, logprobs.shape[-1]))
        return Logprobs(self._asking, sampled, top_ids, top)


def _way(row: SampledRow, vocabulary: int) -> str:
    top_k = limiting_top_k(row.sampling, vocabulary)
    if row.greedy:
        return "greedy"
    if row.sampling.top_p >= 1 and top_k == 0:
        return "plain"
    return "wide" if top_k > CANDIDATES else "filtered"


def _group(indices: list[int], rows: Sequence[SampledRow], vocabulary: int) -> SamplingGroup:
    return SamplingGroup(indices, [rows[index].sampling for index in indices], vocabulary)
