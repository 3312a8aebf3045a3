"""The rows that generate: one forward pass and one draw for all of them, again and again.

One step ahead: while the device computes the next tokens, the host reads the last ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx

from worker.engine.caches import Cache, join, keep_rows
from worker.engine.sampling import BatchSampler, Logprobs, SampledRow


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities: of the drawn token, and (id, value) of the likeliest, best first."""

    drawn: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Token:
    """One new token of a sequence; `token_id` is None when the sequence ended with an end
    token, which nobody gets to see."""

    sequence: int
    token_id: int | None
    finish_reason: str | None
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class DecodingRow:
    """One sequence of the batch.

    Attributes:
        left: tokens that may still be drawn.
        ends: tokens that end it.
        complete: all that may be drawn was drawn.
        gone: it ended or was removed; what was drawn for it ahead is of no use.
    """

    sequence: int
    left: int
    ends: frozenset[int]
    sampled: SampledRow
    complete: bool = field(default=False, init=False)
    gone: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Tokens that the device was asked for and nobody has read: [B], for `rows`."""

    rows: list[DecodingRow]
    tokens: mx.array
    logprobs: Logprobs | None


class DecodeBatch:
    """All decoding rows of one model. Belongs to the engine thread."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._sampler = BatchSampler()
        self._rows: list[DecodingRow] = []
        self._cache: Cache = []
        self._inputs = mx.zeros(0, dtype=mx.uint32)  # [B] each row's next input
        self._drawn: _Drawn | None = None

    @property
    def busy(self) -> bool:
        """Whether a step would bring something."""
        return bool(self._rows) or self._drawn is not None

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Sequence[DecodingRow], cache: Cache, inputs: Sequence[int]) -> None:
        """Rows join; the cache holds all their tokens but the last, which is their input."""
        self._cache = join(self._cache, cache)
        self._sampler.extend([row.sampled for row in rows])
        self._rows.extend(rows)
        self._inputs = mx.concatenate([self._inputs, mx.array(list(inputs), dtype=mx.uint32)])

    def remove(self, sequence: int) -> None:
        """Drop a sequence between two steps; unknown ones are ignored."""
        for row in self._rows:
            row.gone = row.gone or row.sequence == sequence
        self._keep(lambda row: not row.gone)

    def step(self) -> list[Token]:
        """Ask the device for the next token of every row, and read those it was asked for
        before. A row that joined brings its first token at the second step."""
        before = self._drawn
        for row in self._rows:
            row.complete = row.left == 0
        self._keep(lambda row: not row.complete)
        self._drawn = self._draw() if self._rows else None
        tokens = _read(before) if before is not None else []
        self._keep(lambda row: not row.gone)
        return tokens

    def _draw(self) -> _Drawn:
        logits = self._network(self._inputs[:, None], cache=self._cache)[:, -1]
        tokens, logprobs = self._sampler.sample(logits, self._inputs)
        mx.async_eval(tokens, *(logprobs.arrays if logprobs else ()))
        self._inputs = tokens
        for row in self._rows:
            row.left -= 1
        return _Drawn(list(self._rows), tokens, logprobs)

    def _keep(self, stays: Callable[[DecodingRow], bool]) -> None:
        staying = [index for index, row in enumerate(self._rows) if stays(row)]
        if len(staying) == len(self._rows):
            return
        self._rows = [self._rows[index] for index in staying]
        self._cache = keep_rows(self._cache, staying)
        self._sampler.keep(staying)
        self._inputs = self._inputs[mx.array(staying, dtype=mx.uint32)]


def _read(drawn: _Drawn) -> list[Token]:
    """Wait for the device, and mark the rows that ended."""
    token_ids = cast(list[int], drawn.tokens.tolist())
    logprobs = _read_logprobs(drawn.logprobs) if drawn.logprobs else {}
    tokens = []
    for place, (row, token_id) in enumerate(zip(drawn.rows, token_ids, strict=True)):
        if row.gone:
            continue
        if token_id in row.ends:
            row.gone = True
            tokens.append(Token(row.sequence, None, "stop"))
        else:
            row.gone = row.complete
            reason = "length" if row.complete else None
            tokens.append(Token(row.sequence, token_id, reason, logprobs.get(place)))
    return tokens


def _read_logprobs(logprobs: Logprobs) -> dict[int, TokenLogprobs]:
    """By the row's place in the batch."""
    drawn = cast(list[float], logprobs.drawn.tolist())
    top_ids = cast(list[list[int]], logprobs.top_ids.tolist())
    top = cast(list[list[float]], logprobs.top.tolist())
    return {
        row: TokenLogprobs(drawn[i], list(zip(top_ids[i], top[i], strict=True)))
        for i, row in enumerate(logprobs.rows)
    }
