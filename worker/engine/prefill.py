"""Prompts on their way into the KV cache, a chunk at a time, and no output layer for them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from worker.engine.caches import BatchCache, Cache, CacheLayout, evaluate, keep_rows
from worker.engine.prompt import PreparedSequence


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` prompt tokens of a sequence are in the KV cache."""

    sequence: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A sequence whose tokens are to be prefilled; again, if it was preempted.

    Attributes:
        arrived_at: when it first came, on the monotonic clock.
        due_at: who is due first is prefilled first.
    """

    prepared: PreparedSequence
    arrived_at: float
    due_at: float

    @property
    def id(self) -> int:
        return self.prepared.order.sequence

    @property
    def tokens(self) -> int:
        return len(self.prepared.all_ids)


class PrefillJob:
    """Sequences that go into one cache together, all their tokens but the last, which is the
    first input of decoding. Shorter ones are padded at their ends.

    Belongs to the engine thread.
    """

    def __init__(self, network: Any, layout: CacheLayout, pending: Sequence[Pending]) -> None:
        self._network = network
        self.pending = list(pending)
        self._tokens = [each.prepared.all_ids for each in pending]
        self._room = self._longest
        self.cache: Cache = layout.new_cache(len(pending), self._room)
        self._layout = layout
        self.done = 0

    @property
    def due_at(self) -> float:
        return min(each.due_at for each in self.pending)

    @property
    def reserved_bytes(self) -> int:
        """What its cache takes when it is full."""
        return self._layout.bytes(len(self.pending), self._room)

    @property
    def _longest(self) -> int:
        return max(map(len, self._tokens))

    @property
    def complete(self) -> bool:
        return self.left == 0

    @property
    def inputs(self) -> list[int]:
        """[B] the last token of each."""
        return [tokens[-1] for tokens in self._tokens]

    @property
    def left(self) -> int:
        """Tokens of each row that are still to be prefilled."""
        return max(0, self._longest - 1 - self.done)

    def advance(self, count: int) -> float:
        """Put the next `count` tokens of each into the cache; the seconds it took."""
        started = time.perf_counter()
        until = self.done + min(count, self.left)
        if until > self.done:
            chunk = [_slice(tokens[:-1], self.done, until) for tokens in self._tokens]
            self._network(mx.array(chunk), cache=self.cache)  # the logits are never computed
            evaluate(self.cache)
            mx.clear_cache()
            self.done = until
        return time.perf_counter() - started

    def remove(self, sequence: int) -> None:
        """Drop a sequence; unknown ones are ignored."""
        stay = [place for place, each in enumerate(self.pending) if each.id != sequence]
        if len(stay) < len(self.pending):
            self.pending = [self.pending[place] for place in stay]
            self._tokens = [self._tokens[place] for place in stay]
            if stay:
                self._room = max(self._longest, self.done)
                keep_rows(self.cache, stay, self._room)

    def progress(self) -> list[Progress]:
        return [
            Progress(each.id, min(self.done, len(tokens) - 1), len(tokens))
            for each, tokens in zip(self.pending, self._tokens, strict=True)
        ]

    def hand_over(self) -> BatchCache:
        """The cache of what is complete, for decoding."""
        lengths = [len(tokens) - 1 for tokens in self._tokens]
        return BatchCache.of(self.cache, lengths, self._layout)


def _slice(tokens: Sequence[int], begin: int, end: int) -> list[int]:
    part = list(tokens[begin:end])
    return part + [0] * (end - begin - len(part))
