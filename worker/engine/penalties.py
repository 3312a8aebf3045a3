"""Penalties and bias on the logits of a batch: each for the rows that ask for it.

Shapes: logits [B, V]; inputs [B], the tokens that the next ones follow.
"""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from worker.engine.token_sampling import column
from worker.link.orders import Sampling


class Counted(Protocol):
    """What penalties know of a row.

    Attributes:
        prompt_ids, answer_ids: all tokens up to the row's first input, that included.
        fresh: its input stands in those; later ones were drawn here and are yet to be counted.
        seen, counts: [V] kept between the sets of rows that it was a part of.
    """

    sampling: Sampling
    prompt_ids: Sequence[int]
    answer_ids: Sequence[int]
    fresh: bool
    seen: mx.array | None
    counts: mx.array | None


class Repetition:
    """Weakens every token of prompt and answer (CTRL, arXiv:1909.05858, section 4.1)."""

    def __init__(self, rows: Sequence[Counted], vocabulary: int) -> None:
        self._indices = [i for i, row in enumerate(rows) if row.sampling.repetition_penalty != 1]
        self._rows = [rows[i] for i in self._indices]
        if self._rows:
            self._penalty = column([row.sampling.repetition_penalty for row in self._rows])
            self._seen = mx.stack([_seen(row, vocabulary) for row in self._rows])

    def __bool__(self) -> bool:
        return bool(self._rows)

    def apply(self, logits: mx.array, inputs: mx.array) -> mx.array:
        if not self._rows:
            return logits
        inputs = take(inputs, self._indices)[:, None]
        self._seen = mx.put_along_axis(self._seen, inputs, mx.array(True), axis=-1)
        mine = take(logits, self._indices)
        weakened = mx.where(mine < 0, mine * self._penalty, mine / self._penalty)
        return put(logits, self._indices, mx.where(self._seen, weakened, mine))

    def requeue(self) -> None:
        """Leave with each row what was counted for it."""
        for place, row in enumerate(self._rows):
            row.seen = self._seen[place]


class PresenceAndFrequency:
    """Weakens the tokens of the answer, once each and by count, as OpenAI's API defines it."""

    def __init__(self, rows: Sequence[Counted], vocabulary: int) -> None:
        self._indices = [
            i
            for i, row in enumerate(rows)
            if row.sampling.presence_penalty or row.sampling.frequency_penalty
        ]
        self._rows = [rows[i] for i in self._indices]
        if self._rows:
            self._presence = column([row.sampling.presence_penalty for row in self._rows])
            self._frequency = column([row.sampling.frequency_penalty for row in self._rows])
            self._counts = mx.stack([_counts(row, vocabulary) for row in self._rows])

    def __bool__(self) -> bool:
        return bool(self._rows)

    def apply(self, logits: mx.array, inputs: mx.array) -> mx.array:
        if not self._rows:
            return logits
        new = mx.array([0.0 if row.fresh else 1.0 for row in self._rows])
        places = mx.arange(len(self._rows))
        self._counts = self._counts.at[places, take(inputs, self._indices)].add(new)
        penalty = self._frequency * self._counts + self._presence * (self._counts > 0)
        return put(logits, self._indices, take(logits, self._indices) - penalty)

    def requeue(self) -> None:
        """Leave with each row what was counted for it."""
        for place, row in enumerate(self._rows):
            row.counts = self._counts[place]


class Bias:
    """Adds the logit biases of all rows at once."""

    def __init__(self, rows: Sequence[Counted]) -> None:
        entries = [
            (index, int(token), value)
            for index, row in enumerate(rows)
            for token, value in row.sampling.logit_bias.items()
        ]
        self._any = bool(entries)
        if entries:
            indices, tokens, values = zip(*entries, strict=True)
            self._indices, self._tokens = mx.array(indices), mx.array(tokens)
            self._values = mx.array(values, dtype=mx.float32)

    def __bool__(self) -> bool:
        return self._any

    def apply(self, logits: mx.array) -> mx.array:
        if not self._any:
            return logits
        return logits.at[self._indices, self._tokens].add(self._values)


def take(array: mx.array, indices: Sequence[int]) -> mx.array:
    """Some rows of an array; itself where that is all of them."""
    if len(indices) == array.shape[0]:
        return array
    return array[mx.array(list(indices))]


def put(array: mx.array, indices: Sequence[int], rows: mx.array) -> mx.array:
    """The array with some of its rows replaced; may change `array` itself."""
    if len(indices) == array.shape[0]:
        return rows
    array[mx.array(list(indices))] = rows
    return array


def _seen(row: Counted, vocabulary: int) -> mx.array:
    if row.seen is not None:
        return row.seen
    ids = mx.array([*row.prompt_ids, *row.answer_ids])
    return mx.put_along_axis(mx.zeros(vocabulary, dtype=mx.bool_), ids, mx.array(True), axis=0)


def _counts(row: Counted, vocabulary: int) -> mx.array:
    if row.counts is not None:
        return row.counts
    counts = mx.zeros(vocabulary)
    if not row.answer_ids:
        return counts
    return counts.at[mx.array(list(row.answer_ids))].add(1.0)
