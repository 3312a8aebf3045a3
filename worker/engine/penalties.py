"""Logits processors for penalties and bias, each applied only to the rows that request it.

Shapes: logits [B, V]; inputs [B], the last token of each row.
"""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from worker.engine.token_sampling import column
from worker.link.orders import Sampling


class PenaltyRow(Protocol):
    """A row as the penalties see it.

    Attributes:
        prompt_ids, answer_ids: all tokens up to and including the row's first input.
        fresh: its input is one of these; later inputs were sampled here and are not counted yet.
        seen, counts: [V], saved when the batch changes.
    """

    sampling: Sampling
    prompt_ids: Sequence[int]
    answer_ids: Sequence[int]
    fresh: bool
    seen: mx.array | None
    counts: mx.array | None


class RepetitionPenalty:
    """Penalises every token of prompt and answer (CTRL, arXiv:1909.05858, section 4.1)."""

    def __init__(self, rows: Sequence[PenaltyRow], vocabulary: int) -> None:
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
        own = take(logits, self._indices)
        penalised = mx.where(own < 0, own * self._penalty, own / self._penalty)
        return put(logits, self._indices, mx.where(self._seen, penalised, own))

    def save_state(self) -> None:
        """Store in each row which tokens were seen."""
        for index, row in enumerate(self._rows):
            row.seen = self._seen[index]


class PresenceAndFrequencyPenalty:
    """Penalises the tokens of the answer, once each and by count, as OpenAI's API defines it."""

    def __init__(self, rows: Sequence[PenaltyRow], vocabulary: int) -> None:
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
        rows = mx.arange(len(self._rows))
        self._counts = self._counts.at[rows, take(inputs, self._indices)].add(new)
        penalty = self._frequency * self._counts + self._presence * (self._counts > 0)
        return put(logits, self._indices, take(logits, self._indices) - penalty)

    def save_state(self) -> None:
        """Store in each row the counts of its tokens."""
        for index, row in enumerate(self._rows):
            row.counts = self._counts[index]


class LogitBias:
    """Adds the logit biases of all rows at once."""

    def __init__(self, rows: Sequence[PenaltyRow]) -> None:
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
    """Select rows of an array; returns the array itself if that is all of them."""
    if len(indices) == array.shape[0]:
        return array
    return array[mx.array(list(indices))]


def put(array: mx.array, indices: Sequence[int], rows: mx.array) -> mx.array:
    """Return the array with some of its rows replaced; may mutate `array`."""
    if len(indices) == array.shape[0]:
        return rows
    array[mx.array(list(indices))] = rows
    return array


def _seen(row: PenaltyRow, vocabulary: int) -> mx.array:
    if row.seen is not None:
        return row.seen
    ids = mx.array([*row.prompt_ids, *row.answer_ids])
    return mx.put_along_axis(mx.zeros(vocabulary, dtype=mx.bool_), ids, mx.array(True), axis=0)


def _counts(row: PenaltyRow, vocabulary: int) -> mx.array:
    if row.counts is not None:
        return row.counts
    counts = mx.zeros(vocabulary)
    if not row.answer_ids:
        return counts
    return counts.at[mx.array(list(row.answer_ids))].add(1.0)
