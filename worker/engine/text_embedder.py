"""Embeds and scores texts in passes between decode steps: texts of similar length share a pass.

A text needs no KV cache and no slot; it waits in the queue of its model until a pass has room.
"""

import time
from bisect import insort
from collections.abc import Callable

from shared.ids import ModelId
from worker.engine.device import on_gpu
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.embedding_pass import EmbeddingPasses
from worker.engine.text_preparation import PreparedText
from worker.link.activity import EngineActivity, EngineActivityRecord
from worker.link.facts import SequenceOutput

_MAX_PASS_TOKENS = 16_384
_MAX_PASS_TOKENS_ON_CPU = 512
"""What a layer computes for more does not fit into a core's cache."""
_MAX_TOKEN_PAIRS = 2**26
"""Bound the memory of a pass: attention holds rows times length squared numbers per head."""
_MAX_PADDING = 0.25
"""Of the tokens of a pass: a text that is much longer or shorter waits for another pass."""
_FIRST_TOKENS_PER_S = 2000.0
_NEWEST = 0.3


class TextQueue:
    """The texts that wait for one model, and the speed of its passes."""

    def __init__(self, model: EmbeddingModel, max_pass_tokens: int) -> None:
        self.passes = EmbeddingPasses(model)
        self._max_pass_tokens = max_pass_tokens
        self.waiting: list[PreparedText] = []  # by length
        self._arrivals: dict[int, int] = {}  # sequence: number
        self._arrived = 0
        self._token_s = 1 / _FIRST_TOKENS_PER_S

    def add(self, text: PreparedText) -> None:
        insort(self.waiting, text, key=_length)
        self._arrivals[text.order.sequence] = self._arrived
        self._arrived += 1

    def remove(self, sequence: int) -> PreparedText | None:
        """Remove and return a waiting text; None if there is none."""
        for index, text in enumerate(self.waiting):
            if text.order.sequence == sequence:
                self._arrivals.pop(sequence)
                return self.waiting.pop(index)
        return None

    def take(self, seconds: float) -> list[PreparedText]:
        """Remove and return the texts of the next pass: the first one of the highest priority, and
        others of similar length, as many as fit into `seconds`. At least one."""
        first = min(range(len(self.waiting)), key=lambda index: self._rank(self.waiting[index]))
        pairs_limit = _MAX_TOKEN_PAIRS / _length(self.waiting[first])
        limit = min(self._max_pass_tokens, pairs_limit, seconds / self._token_s)
        chosen = similar([_length(text) for text in self.waiting], first, limit)
        numbers = self._within_query_limit(first, chosen, limit)
        inputs = [self.waiting[number] for number in numbers]
        for number in reversed(numbers):
            del self.waiting[number]
        for text in inputs:
            self._arrivals.pop(text.order.sequence)
        return inputs

    def _within_query_limit(self, first: int, chosen: range, limit: float) -> list[int]:
        """Return those of the chosen texts whose new queries have at most `limit` tokens together,
        in order; `first` in any case."""
        numbers, queries = [first], self.passes.new_queries([self.waiting[first]])
        for number in chosen:
            more = queries | self.passes.new_queries([self.waiting[number]])
            if number != first and sum(len(query.token_ids) for query in more) <= limit:
                numbers.append(number)
                queries = more
        return sorted(numbers)

    def _rank(self, text: PreparedText) -> tuple[int, int]:
        return text.order.priority, self._arrivals[text.order.sequence]

    def record_pass(self, tokens: int, seconds: float) -> None:
        self._token_s += _NEWEST * (seconds / tokens - self._token_s)


def similar(lengths: list[int], first: int, limit: float) -> range:
    """Return the indices of a pass: `first` and its neighbours in the sorted `lengths`, while
    rows times the longest length is at most `limit` and little of it is padding."""
    start, stop = first, first + 1
    used = lengths[first]
    while True:
        candidates = []
        for wider in (range(start - 1, stop), range(start, stop + 1)):
            if wider.start < 0 or wider.stop > len(lengths):
                continue
            added = lengths[wider.start] if wider.start < start else lengths[wider.stop - 1]
            padded = len(wider) * lengths[wider.stop - 1]
            if padded <= limit and padded - used - added <= _MAX_PADDING * padded:
                candidates.append((padded - used - added, wider, added))
        if not candidates:
            return range(start, stop)
        _, wider, added = min(candidates, key=lambda each: each[0])
        start, stop, used = wider.start, wider.stop, used + added


class TextEmbedder:
    """The texts of all embedding models of an engine. Belongs to the engine thread.

    Args:
        activity: records the model and the texts of the current pass.
        max_pass_tokens: of a pass, padding included; by default as the device computes fastest.
    """

    def __init__(
        self,
        activity: EngineActivityRecord,
        clock: Callable[[], float] = time.perf_counter,
        max_pass_tokens: int | None = None,
    ) -> None:
        self._activity = activity
        self._clock = clock
        on_device = _MAX_PASS_TOKENS if on_gpu() else _MAX_PASS_TOKENS_ON_CPU
        self._max_pass_tokens = on_device if max_pass_tokens is None else max_pass_tokens
        self._queues: dict[ModelId, TextQueue] = {}
        self._last = ModelId("")

    def __len__(self) -> int:
        """The number of waiting texts."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def serve(self, name: ModelId, model: EmbeddingModel) -> None:
        self._queues[name] = TextQueue(model, self._max_pass_tokens)

    def add(self, text: PreparedText) -> None:
        self._queues[text.order.model].add(text)

    def remove(self, sequence: int) -> PreparedText | None:
        """Remove and return a waiting text; None if there is none."""
        found = (queue.remove(sequence) for queue in self._queues.values())
        return next((text for text in found if text is not None), None)

    def remove_model(self, name: ModelId) -> list[PreparedText]:
        """Stop serving a model; return the texts that waited for it."""
        queue = self._queues.pop(name, None)
        return queue.waiting if queue is not None else []

    def embed(self, seconds: float) -> list[SequenceOutput]:
        """Run one pass of about `seconds`; models take turns."""
        names = [name for name, queue in self._queues.items() if queue.waiting]
        name = next((each for each in names if each > self._last), min(names))
        self._last, queue = name, self._queues[name]
        inputs = queue.take(seconds)
        self._activity.begin(
            EngineActivity("prefill", name, tuple(text.order.sequence for text in inputs))
        )
        began_at = self._clock()
        tokens = len(inputs) * len(inputs[-1].token_ids)
        tokens += sum(len(query.token_ids) for query in queue.passes.new_queries(inputs))
        outputs = queue.passes.run(inputs)
        queue.record_pass(tokens, self._clock() - began_at)
        self._activity.end()
        return outputs


def _length(text: PreparedText) -> int:
    return len(text.token_ids)
