"""Answers that tests expect, up to ties."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, SupportsIndex, overload

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from tests.faults.records import first_difference
from tests.ties import leave_out, tie_gap
from tests.worker.engine.reference_sampler import contenders
from worker.engine.prompt import PreparedSequence

Contenders = Callable[[int], Collection[int]]
"""The tokens that may come at a place of an answer, after those before it."""


class ExpectedTokens(list[int]):
    """The tokens of an answer. Another answer equals it if it has the same tokens, or parts from it
    at a tie, from which on it is left out."""

    def __init__(self, tokens: Iterable[int], contenders: Contenders) -> None:
        super().__init__(tokens)
        self._contenders = contenders

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list):
            return NotImplemented
        place = first_difference(self, other)
        if place is None:
            return True
        if place >= min(len(self), len(other)) or other[place] not in self._contenders(place):
            return False
        leave_out(f"from token {place} on: {other[place]} is as good as {self[place]}")
        return True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    @overload
    def __getitem__(self, place: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> "ExpectedTokens": ...
    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            return super().__getitem__(place)
        places = range(len(self))[place]
        return ExpectedTokens(super().__getitem__(place), lambda at: self._contenders(places[at]))


def likeliest(steps: Iterable[tuple[int, Any]]) -> ExpectedTokens:
    """A greedy answer: its tokens, and at each the logits or log-probabilities [V]."""
    tokens, near = [], []
    for token, logits in steps:
        numbers = np.array(logits)
        tokens.append(int(token))
        near.append(np.flatnonzero(numbers >= numbers.max() - tie_gap(numbers)).tolist())
    return ExpectedTokens(tokens, near.__getitem__)


def drawn_alone(
    network: Any, sequence: PreparedSequence, tokens: Sequence[int | None]
) -> ExpectedTokens:
    """An answer to a sequence that this network gave alone. What else could have been drawn is
    computed only where another answer parts from it."""
    ids = [token for token in tokens if token is not None]
    real = getattr(network, "real", network)

    def contenders_at(place: int) -> set[int]:
        context = mx.array([[*sequence.all_ids, *ids[:place]]])
        logits = real(context, cache=make_prompt_cache(real))[0, -1].astype(mx.float32)
        answered = [*sequence.order.answer_ids, *ids[:place]]
        how = sequence.order.sampling
        numbers = np.array(logits).astype(np.float64)
        return contenders(numbers, how, sequence.prompt_ids, answered, tie_gap(numbers))

    return ExpectedTokens(ids, contenders_at)
