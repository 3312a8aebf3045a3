"""Probes whether rows of a network may be batched: generates with a few rows alone, then batched.

Each row generates a few tokens alone. Then the same tokens are fed to the network again, with the
rows in one cache, and the log-probabilities must agree except for rounding (`agreement.py`). This
finds masks and positions that are built for the whole batch, shapes that assume one row, and
windows that are counted from the batch's width.
"""

import time
from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from shared.messages.model_status import Batching
from worker.engine.batch_cache import BatchCache
from worker.engine.batching_verdicts import BatchingVerdict, BatchingVerdictStore, known_verdict
from worker.engine.caches import (
    CacheLayout,
    blocks_for,
    empty_cache,
    evaluate,
    leaves,
)
from worker.engine.prefill_cost import PrefillCost

_TOLERANCE_FACTOR = 10.0
_MIN_GAP = 1e-3
_MIN_EPSILONS = 32
"""Lower bound of the allowed gap in epsilons: copies may by chance round as the row alone does."""
_MAX_GAP = 0.5
"""Copies of a row with a larger gap are wrong themselves."""
_TIE_GAP = 1e-3
_TIE_EPSILONS = 8
"""Logits from 4 to 8 are multiples of this many epsilons."""


def allowed_gap(own_gap: float, epsilon: float) -> float:
    """Return the largest gap between log-probabilities that rounding explains.

    Args:
        own_gap: the largest gap between the row alone and the row batched with copies of itself.
        epsilon: the machine epsilon of the network's number type.
    """
    return min(_MAX_GAP, max(_TOLERANCE_FACTOR * own_gap, _MIN_GAP, _MIN_EPSILONS * epsilon))


def is_tie(best_gap: float, own_gap: float, epsilon: float) -> bool:
    """Whether the two likeliest tokens are so close that rounding decides between them.

    Args:
        best_gap: the gap between the log-probabilities of the two likeliest tokens.
        own_gap, epsilon: as for `allowed_gap`; each of the two values may be off by that much.
    """
    return best_gap < max(_TIE_GAP, _TIE_EPSILONS * epsilon, min(_MAX_GAP, 2 * own_gap))


T = TypeVar("T")
Passes: TypeAlias = Generator[float, None, T]
"""Yields the progress of loading after each pass, so that other models can decode in between."""

_SHORT_TOKENS, _MIDDLE_TOKENS = 5, 40
_MIDDLE = 1
_BEYOND_TOKENS = 24
_LONGEST_TOKENS = 4096
_CHUNK_TOKENS = 256
_LONGEST_PROMPT_S = 10.0
"""The row that is to exceed a window is shortened if its prefill would take longer than this."""
_STEPS = 4
_COPIES = 3
_STRIDE = 7
"""Distance of successive token ids in prompts: any value gives varied tokens."""
_WEIGHTS_READ = 1.0


@dataclass(frozen=True, slots=True)
class _Row:
    """The output of the network after a prompt, alone.

    Attributes:
        inputs: the prompt's last token, and the generated tokens except the last one.
        logprobs: [steps, V] after each input.
    """

    prompt: list[int]
    inputs: list[int]
    logprobs: mx.array


def find_verdict(
    network: Any,
    layout: CacheLayout,
    vocabulary_size: int,
    context_tokens: int,
    speed: PrefillCost,
    store: BatchingVerdictStore,
    fingerprint: str,
) -> Passes[BatchingVerdict]:
    """Return the batching verdict of a network: from its caches, the verdicts that ship with the
    project, an earlier probe, or a new probe.

    Raises:
        Exception: any error of the network with a single row.
    """
    if not layout.allows_batching:
        return BatchingVerdict("alone", "its caches hold one row each")
    if (known := known_verdict(network)) is not None:
        return known
    if (found := store.find(fingerprint)) is not None:
        return found
    max_tokens = min(context_tokens - _STEPS, speed.tokens_in(_LONGEST_PROMPT_S, 0))
    verdict = yield from probe(network, layout, vocabulary_size, max_tokens)
    store.save(fingerprint, verdict)
    return verdict


def probe(
    network: Any, layout: CacheLayout, vocabulary_size: int, max_tokens: int
) -> Passes[BatchingVerdict]:
    """Compare rows alone and batched.

    Args:
        max_tokens: the maximum length of a prompt, even if windows are longer.

    Raises:
        Exception: any error of the network with a single row.
    """
    began_at = time.perf_counter()
    trial = _Trial(network, layout)
    rows: list[_Row] = []
    for length in _lengths(network, max_tokens):
        prompt = [_STRIDE * index % vocabulary_size for index in range(1, length + 1)]
        rows.append((yield from trial.generate_alone(prompt)))
    try:
        reason = yield from _find_difference(trial, rows)
    except Exception as error:  # a network that does not support batches can fail in any way
        reason = f"rows together: {type(error).__name__}: {error}".partition("\n")[0]
    mx.clear_cache()
    batching: Batching = "together" if reason is None else "alone"
    return BatchingVerdict(batching, reason, time.perf_counter() - began_at)


def _lengths(network: Any, max_tokens: int) -> list[int]:
    """Return the lengths of the prompts: two different ones, and one beyond the smallest window."""
    windows = [
        int(size) for leaf in leaves(empty_cache(network)) if (size := getattr(leaf, "max_size", 0))
    ]
    lengths = [_SHORT_TOKENS, _MIDDLE_TOKENS]
    if windows:
        lengths.append(min(min(windows) + _BEYOND_TOKENS, _LONGEST_TOKENS))
    return [max(2, min(length, max_tokens)) for length in lengths]


def _find_difference(trial: "_Trial", rows: Sequence[_Row]) -> Passes[str | None]:
    """Return a description of the first difference between batched rows and single rows, if any."""
    middle = rows[_MIDDLE]
    copies = yield from trial.run_joined([middle] * _COPIES)
    own_gap = max(_gap(middle, logprobs) for logprobs in copies)
    limit = allowed_gap(own_gap, _epsilon(trial.network))
    prefilled = yield from trial.run_prefilled([middle] * 2)
    joined = yield from trial.run_joined(rows)
    comparisons = [
        ("copies of a row", [middle] * _COPIES, copies),
        ("prompts that are prefilled together", [middle] * 2, prefilled),
        ("rows of different lengths", rows, joined),
    ]
    for case, expected, found in comparisons:
        gap = max(_gap(row, logprobs) for row, logprobs in zip(expected, found, strict=True))
        if not gap <= limit:  # nan, too
            return (
                f"log-probabilities of {case} differ from those alone by {gap:.2g}, "
                f"of which rounding explains {limit:.2g}"
            )
    return None


class _Trial:
    """Runs passes of a network, with single rows and with batches."""

    def __init__(self, network: Any, layout: CacheLayout) -> None:
        self.network = network
        self._together = layout
        self._alone = copy(layout)
        self._alone.allows_batching = False

    def generate_alone(self, prompt: list[int]) -> Passes[_Row]:
        """Generate greedily after a prompt."""
        cache = yield from self._prefilled(self._alone, [prompt])
        inputs, logprobs = [prompt[-1]], []
        for _ in range(_STEPS):
            logprobs.append((yield from self._step(cache, inputs[-1:]))[0])
            inputs.append(cast(int, mx.argmax(logprobs[-1]).item()))
        return _Row(prompt, inputs[:-1], mx.stack(logprobs))

    def run_joined(self, rows: Sequence[_Row]) -> Passes[list[mx.array]]:
        """Return [steps, V] log-probabilities per row; rows are prefilled alone, then batched."""
        first, *others = rows
        cache = yield from self._prefilled(self._together, [first.prompt])
        width = blocks_for(max(len(row.prompt) for row in rows) + _STEPS)
        cache.resize(len(rows), width)
        for row in others:
            cache.extend((yield from self._prefilled(self._together, [row.prompt])))
        return (yield from self._run(cache, rows))

    def run_prefilled(self, rows: Sequence[_Row]) -> Passes[list[mx.array]]:
        """Return [steps, V] log-probabilities per row; rows of one length are batched from the
        start, and prefilled in two chunks."""
        cache = yield from self._prefilled(self._together, [row.prompt for row in rows], parts=2)
        return (yield from self._run(cache, rows))

    def _run(self, cache: BatchCache, rows: Sequence[_Row]) -> Passes[list[mx.array]]:
        steps = []
        for inputs in zip(*(row.inputs for row in rows), strict=True):
            logprobs = yield from self._step(cache, inputs)
            steps.append(logprobs)
        return list(mx.stack(steps, axis=1))

    def _step(self, cache: BatchCache, inputs: Sequence[int]) -> Passes[mx.array]:
        """Return the log-probabilities [B, V] after one token of each row."""
        logits = self.network(mx.array([[each] for each in inputs]), cache=cache.layers)[:, -1]
        cache.rows.advance()
        logits = logits.astype(mx.float32)
        logprobs: mx.array = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.eval(logprobs)
        yield _WEIGHTS_READ
        return logprobs

    def _prefilled(
        self, layout: CacheLayout, prompts: Sequence[list[int]], *, parts: int = 1
    ) -> Passes[BatchCache]:
        """Return the cache of all tokens except the last of prompts of one length, with capacity
        for the answers."""
        length = len(prompts[0]) - 1
        cache = layout.new_cache(len(prompts), length + _STEPS)
        chunk = min(_CHUNK_TOKENS, -(-length // parts))
        for begin in range(0, length, chunk):
            tokens = mx.array([prompt[begin : min(begin + chunk, length)] for prompt in prompts])
            self.network(tokens, cache=cache)
            evaluate(cache)
            yield _WEIGHTS_READ
        return BatchCache.of(cache, [length] * len(prompts), layout)


def _gap(row: _Row, logprobs: mx.array) -> float:
    """Return the largest difference between log-probabilities; nan if any of them is nan."""
    apart = mx.where(row.logprobs == logprobs, 0.0, mx.abs(row.logprobs - logprobs))
    return cast(float, apart.max().item())


def _epsilon(network: Any) -> float:
    """Return the largest machine epsilon of the dtypes of a network's parameters."""
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    types = {array.dtype for _, array in parameters}
    return max(float(mx.finfo(each).eps) for each in types if mx.issubdtype(each, mx.floating))
