"""Prompts on their way into the KV cache, a chunk at a time, and no output layer for them.

Prompts of the same length go together: nothing is padded, so that none pays for another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from worker.engine.caches import Cache, evaluate, keep_rows, new_batch_cache
from worker.engine.prompt import PreparedSequence


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` prompt tokens of a sequence are in the KV cache."""

    sequence: int
    done: int
    total: int


class PrefillGroup:
    """Sequences with equally many tokens, all but the last of which go into a cache.

    The last is the first input of decoding. Belongs to the engine thread.
    """

    def __init__(self, network: Any, sequences: Sequence[PreparedSequence]) -> None:
        self._network = network
        self.sequences = list(sequences)
        self.cache: Cache = new_batch_cache(network, len(sequences))
        self._done = 0
        self._total = len(sequences[0].all_ids)

    @property
    def complete(self) -> bool:
        return self._done == self._total - 1

    @property
    def inputs(self) -> list[int]:
        """[B] the last token of each."""
        return [sequence.all_ids[-1] for sequence in self.sequences]

    def advance(self, max_tokens: int) -> list[Progress]:
        """Put the next tokens of each into the cache: at most `max_tokens` in all, and at
        least one of each."""
        count = max(1, max_tokens // len(self.sequences))
        until = min(self._done + count, self._total - 1)
        if until > self._done:
            chunk = mx.array([sequence.all_ids[self._done : until] for sequence in self.sequences])
            self._network(chunk, cache=self.cache)  # the logits are never computed
            evaluate(self.cache)
            mx.clear_cache()
            self._done = until
        return [
            Progress(sequence.order.sequence, self._done, self._total)
            for sequence in self.sequences
        ]

    def remove(self, sequence_id: int) -> None:
        """Drop a sequence; unknown ones are ignored."""
        stay = [i for i, s in enumerate(self.sequences) if s.order.sequence != sequence_id]
        if len(stay) < len(self.sequences):
            self.sequences = [self.sequences[i] for i in stay]
            self.cache = keep_rows(self.cache, stay)
