"""Continuous batching of one model: the one module that touches mlx-lm's generator.

Sequences join and leave at every step. `BatchGenerator` is composed, never patched: its
samplers and processors are ours (`sampling`), its stop sequences the end tokens.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, StopSequences

from worker.engine.model import LoadedModel
from worker.engine.prompt import PreparedSequence
from worker.engine.sampling import make_processors, make_sampler

PREFILL_CHUNK_TOKENS = 512
_PREFILL_ROWS = 8
"""Prompts prefilled together, mlx-lm's default. With 1 each join costs two decode steps."""


@dataclass(frozen=True, slots=True)
class Token:
    """One new token of a sequence.

    Attributes:
        token_id: None when the sequence ended with an end token, which nobody gets to see.
        logprobs: [V] log-probabilities the token was drawn from, not yet on the host.
    """

    sequence: int
    token_id: int | None
    finish_reason: str | None
    logprobs: mx.array


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` prompt tokens of a sequence are in the KV cache."""

    sequence: int
    done: int
    total: int


class Batch:
    """All sequences of one model. Every method belongs to the engine thread."""

    def __init__(self, model: LoadedModel, *, max_size: int, prefill_chunk_tokens: int) -> None:
        self._generator = BatchGenerator(
            model.network,
            completion_batch_size=max_size,
            prefill_batch_size=_PREFILL_ROWS,
            prefill_step_size=prefill_chunk_tokens,
        )
        self._end_ids = model.end_ids
        self._end_only = StopSequences([(token,) for token in model.end_ids])
        self._sequences: dict[int, int] = {}  # the generator's uid -> our sequence
        self._uids: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, prepared: PreparedSequence) -> None:
        """Queue a sequence for prefill; it joins the batch at one of the next steps."""
        order = prepared.order
        position = len(order.resumed_ids)
        (uid,) = self._generator.insert(
            [[*prepared.prompt_ids, *order.resumed_ids]],
            max_tokens=[prepared.max_tokens - position],
            samplers=[make_sampler(order.sampling, position)],
            logits_processors=[make_processors(order.sampling, len(prepared.prompt_ids))],
            stop_sequences=[self._stops(order.stop_token_ids)],
        )
        self._sequences[uid] = order.sequence
        self._uids[order.sequence] = uid

    def remove(self, sequence: int) -> None:
        """Drop a sequence between two steps; unknown ones are ignored."""
        uid = self._uids.pop(sequence, None)
        if uid is not None:
            del self._sequences[uid]
            self._generator.remove([uid])

    def step(self) -> tuple[list[Token], list[Progress]]:
        """One decode step for all sequences and one chunk of prefill."""
        prefills, responses = self._generator.next()
        progress = [
            Progress(self._sequences[prefill.uid], *prefill.progress) for prefill in prefills
        ]
        return [self._token(response) for response in responses], progress

    def close(self) -> None:
        """Give the wired memory back."""
        self._generator.close()

    def _stops(self, stop_token_ids: list[int]) -> StopSequences:
        if not stop_token_ids:
            return self._end_only
        return StopSequences([(token,) for token in {*self._end_ids, *stop_token_ids}])

    def _token(self, response: Any) -> Token:
        sequence = self._sequences[response.uid]
        reason = response.finish_reason
        if reason is not None:
            del self._sequences[response.uid]
            del self._uids[sequence]
        token_id = None if reason == "stop" else response.token
        return Token(sequence, token_id, reason, response.logprobs)
