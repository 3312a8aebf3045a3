"""Continuous batching of one model: prompts wait, are prefilled, and decode together.

Sequences join and leave between any two steps.
"""

import time
from collections import deque

from worker.engine.decoding import DecodeBatch, DecodingRow, Token
from worker.engine.model import LoadedModel
from worker.engine.prefill import PrefillGroup, Progress
from worker.engine.prompt import PreparedSequence
from worker.engine.sampling import SampledRow


class Batch:
    """All sequences of one model. Every method belongs to the engine thread."""

    def __init__(self, model: LoadedModel, *, max_size: int, prefill_chunk_tokens: int) -> None:
        self._network = model.network
        self._end_ids = model.end_ids
        self._max_size = max_size
        self._chunk_tokens = prefill_chunk_tokens
        self._waiting: deque[PreparedSequence] = deque()
        self._group: PrefillGroup | None = None
        self._decoding = DecodeBatch(model.network)

    def add(self, prepared: PreparedSequence) -> None:
        """Queue a sequence for prefill."""
        self._waiting.append(prepared)

    def remove(self, sequence: int) -> None:
        """Drop a sequence between two steps; unknown ones are ignored."""
        self._waiting = deque(s for s in self._waiting if s.order.sequence != sequence)
        if self._group is not None:
            self._group.remove(sequence)
            if not self._group.sequences:
                self._group = None
        self._decoding.remove(sequence)

    def decode(self) -> list[Token]:
        """One step of all that decode: the tokens of the step before."""
        return self._decoding.step() if self._decoding.busy else []

    def prefill(self, max_stall_s: float) -> list[Progress]:
        """Prefill for about `max_stall_s` while others wait to decode; at least one chunk."""
        started = time.perf_counter()
        nobody_decodes = not self._decoding.busy
        progress: list[Progress] = []
        while self._group is not None or (self._waiting and self._room > 0):
            progress += self._prefill_chunk()
            if nobody_decodes and self._decoding.busy:
                break  # the first tokens come before the next prompt
            if time.perf_counter() - started >= max_stall_s:
                break
        return progress

    @property
    def _room(self) -> int:
        return self._max_size - len(self._decoding)

    def _prefill_chunk(self) -> list[Progress]:
        if self._group is None:
            self._group = PrefillGroup(self._network, self._next_group())
        group = self._group
        progress = group.advance(self._chunk_tokens)
        if group.complete:
            rows = [self._row(prepared) for prepared in group.sequences]
            self._decoding.add(rows, group.cache, group.inputs)
            self._group = None
        return progress

    def _next_group(self) -> list[PreparedSequence]:
        """The first that waits, and others of its length as far as they fit into one chunk."""
        length = len(self._waiting[0].all_ids)
        room = min(self._room, max(1, self._chunk_tokens // length))
        group = [prepared for prepared in self._waiting if len(prepared.all_ids) == length][:room]
        chosen = {prepared.order.sequence for prepared in group}
        self._waiting = deque(s for s in self._waiting if s.order.sequence not in chosen)
        return group

    def _row(self, prepared: PreparedSequence) -> DecodingRow:
        order = prepared.order
        return DecodingRow(
            sequence=order.sequence,
            left=prepared.max_tokens - len(order.resumed_ids),
            ends=self._end_ids | set(order.stop_token_ids),
            sampled=SampledRow(order.sampling, prepared.prompt_ids, order.resumed_ids),
        )
