"""Tries whether rows of a network may be batched: some rows, each alone and then among others.

Each row says a few tokens alone. Then the same tokens are put in once more, with the rows in one
cache, and what the network gives must be what it gave alone, but for rounding (`agreement.py`). The
faults that this finds are masks and positions that are made for the whole batch, shapes that only
one row has, and windows that are counted from the batch's width.
"""

import time
from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from shared.messages.model_status import Batching
from worker.engine.agreement import allowed_gap
from worker.engine.batch_cache import BatchCache
from worker.engine.batching_verdicts import BatchingVerdict, known_verdict
from worker.engine.caches import (
    CacheLayout,
    blocks_for,
    empty_cache,
    evaluate,
    leaves,
)
from worker.engine.prefill_speed import PrefillSpeed
from worker.engine.verdict_store import VerdictStore

T = TypeVar("T")
Passes: TypeAlias = Generator[float, None, T]
"""Yields the progress of loading after each pass, so that others can decode in between."""

_SHORT_TOKENS, _MIDDLE_TOKENS = 5, 40
_MIDDLE = 1
_BEYOND_TOKENS = 24
_LONGEST_TOKENS = 4096
_CHUNK_TOKENS = 256
_LONGEST_PROMPT_S = 10.0
"""A row beyond a window that would take longer alone stays within it."""
_STEPS = 4
_COPIES = 3
_STRIDE = 7
"""Of the tokens in prompts: any will do that are not all the same."""
_ALL_READ = 1.0


@dataclass(frozen=True, slots=True)
class _Row:
    """What the network says after a prompt, alone.

    Attributes:
        inputs: the prompt's last token, and those that came after it but for the last one.
        logprobs: [steps, V] of what comes after each input.
    """

    prompt: list[int]
    inputs: list[int]
    logprobs: mx.array


def find_verdict(
    network: Any,
    layout: CacheLayout,
    vocabulary_size: int,
    context_tokens: int,
    speed: PrefillSpeed,
    kept: VerdictStore,
    fingerprint: str,
) -> Passes[BatchingVerdict]:
    """Whether rows of a network go together: what its caches allow, what comes with the project,
    what was found before, or else what a probe finds.

    Raises:
        Exception: whatever the network raises when a row is alone.
    """
    if not layout.allows_batching:
        return BatchingVerdict("alone", "its caches hold one row each")
    if (known := known_verdict(network)) is not None:
        return known
    if (found := kept.find(fingerprint)) is not None:
        return found
    most_tokens = min(context_tokens - _STEPS, speed.tokens_in(_LONGEST_PROMPT_S, 0))
    verdict = yield from probe(network, layout, vocabulary_size, most_tokens)
    kept.keep(fingerprint, verdict)
    return verdict


def probe(
    network: Any, layout: CacheLayout, vocabulary_size: int, most_tokens: int
) -> Passes[BatchingVerdict]:
    """Try it.

    Args:
        most_tokens: no prompt is longer, however long windows are.

    Raises:
        Exception: whatever the network raises when a row is alone.
    """
    began_at = time.perf_counter()
    trial = _Trial(network, layout)
    rows: list[_Row] = []
    for length in _lengths(network, most_tokens):
        prompt = [_STRIDE * place % vocabulary_size for place in range(1, length + 1)]
        rows.append((yield from trial.say_alone(prompt)))
    try:
        reason = yield from _find_difference(trial, rows)
    except Exception as error:  # a network may fail in any way at what it was not made for
        reason = f"rows together: {type(error).__name__}: {error}".partition("\n")[0]
    mx.clear_cache()
    batching: Batching = "together" if reason is None else "alone"
    return BatchingVerdict(batching, reason, time.perf_counter() - began_at)


def _lengths(network: Any, most_tokens: int) -> list[int]:
    """Of prompts: two that share no length, and one beyond the smallest window."""
    windows = [
        int(size) for leaf in leaves(empty_cache(network)) if (size := getattr(leaf, "max_size", 0))
    ]
    lengths = [_SHORT_TOKENS, _MIDDLE_TOKENS]
    if windows:
        lengths.append(min(min(windows) + _BEYOND_TOKENS, _LONGEST_TOKENS))
    return [max(2, min(length, most_tokens)) for length in lengths]


def _find_difference(trial: "_Trial", rows: Sequence[_Row]) -> Passes[str | None]:
    """What differs when rows are together, if anything does."""
    middle = rows[_MIDDLE]
    copies = yield from trial.say_joined([middle] * _COPIES)
    own_gap = max(_gap(middle, said) for said in copies)
    limit = allowed_gap(own_gap, _epsilon(trial.network))
    prefilled = yield from trial.say_prefilled([middle] * 2)
    joined = yield from trial.say_joined(rows)
    ways = [
        ("copies of a row", [middle] * _COPIES, copies),
        ("prompts that are prefilled together", [middle] * 2, prefilled),
        ("rows of different lengths", rows, joined),
    ]
    for what, expected, found in ways:
        gap = max(_gap(row, said) for row, said in zip(expected, found, strict=True))
        if not gap <= limit:  # nan, too
            return (
                f"log-probabilities of {what} differ from those alone by {gap:.2g}, "
                f"of which rounding explains {limit:.2g}"
            )
    return None


class _Trial:
    """Passes of a network, with rows alone and together."""

    def __init__(self, network: Any, layout: CacheLayout) -> None:
        self.network = network
        self._together = layout
        self._alone = copy(layout)
        self._alone.allows_batching = False

    def say_alone(self, prompt: list[int]) -> Passes[_Row]:
        """Its likeliest tokens."""
        cache = yield from self._prefilled(self._alone, [prompt])
        inputs, logprobs = [prompt[-1]], []
        for _ in range(_STEPS):
            logprobs.append((yield from self._step(cache, inputs[-1:]))[0])
            inputs.append(cast(int, mx.argmax(logprobs[-1]).item()))
        return _Row(prompt, inputs[:-1], mx.stack(logprobs))

    def say_joined(self, rows: Sequence[_Row]) -> Passes[list[mx.array]]:
        """[steps, V] for each of rows that are prefilled alone and then share a cache."""
        first, *others = rows
        cache = yield from self._prefilled(self._together, [first.prompt])
        width = blocks_for(max(len(row.prompt) for row in rows) + _STEPS)
        cache.resize(len(rows), width)
        for row in others:
            cache.extend((yield from self._prefilled(self._together, [row.prompt])))
        return (yield from self._say(cache, rows))

    def say_prefilled(self, rows: Sequence[_Row]) -> Passes[list[mx.array]]:
        """[steps, V] for each of rows of one length that share a cache from the start, into which
        each prompt goes in two parts."""
        cache = yield from self._prefilled(self._together, [row.prompt for row in rows], parts=2)
        return (yield from self._say(cache, rows))

    def _say(self, cache: BatchCache, rows: Sequence[_Row]) -> Passes[list[mx.array]]:
        steps = []
        for inputs in zip(*(row.inputs for row in rows), strict=True):
            logprobs = yield from self._step(cache, inputs)
            steps.append(logprobs)
        return list(mx.stack(steps, axis=1))

    def _step(self, cache: BatchCache, inputs: Sequence[int]) -> Passes[mx.array]:
        """[B, V] the log-probabilities after one token of each row."""
        logits = self.network(mx.array([[each] for each in inputs]), cache=cache.layers)[:, -1]
        cache.rows.advance()
        logits = logits.astype(mx.float32)
        logprobs: mx.array = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.eval(logprobs)
        yield _ALL_READ
        return logprobs

    def _prefilled(
        self, layout: CacheLayout, prompts: Sequence[list[int]], *, parts: int = 1
    ) -> Passes[BatchCache]:
        """The cache of all tokens but the last of prompts of one length, with room for answers."""
        length = len(prompts[0]) - 1
        cache = layout.new_cache(len(prompts), length + _STEPS)
        chunk = min(_CHUNK_TOKENS, -(-length // parts))
        for begin in range(0, length, chunk):
            tokens = mx.array([prompt[begin : min(begin + chunk, length)] for prompt in prompts])
            self.network(tokens, cache=cache)
            evaluate(cache)
            yield _ALL_READ
        return BatchCache.of(cache, [length] * len(prompts), layout)


def _gap(row: _Row, logprobs: mx.array) -> float:
    """The largest difference between log-probabilities; nan if any is not a number."""
    apart = mx.where(row.logprobs == logprobs, 0.0, mx.abs(row.logprobs - logprobs))
    return cast(float, apart.max().item())


def _epsilon(network: Any) -> float:
    """The largest step at 1 of the types of its numbers."""
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    types = {array.dtype for _, array in parameters}
    return max(float(mx.finfo(each).eps) for each in types if mx.issubdtype(each, mx.floating))
