"""What the sampler should draw for one row, in plain numpy and float64.

Only the random numbers come from MLX, made for this one row of the row's key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from worker.engine.token_sampling import limiting_top_k, row_key, uniform_of, uniform_rows
from worker.link.orders import Sampling

Array = NDArray[np.float64]

_ERROR = 3e-6
"""What float32 may add to a sum of probabilities of a row, or to a score of about 10."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a row should draw.

    Attributes:
        decided: no comparison on the way was so close that float32 may decide it otherwise.
        left: how many tokens the filters leave; 1 where the likeliest is taken anyway.
    """

    token: int
    decided: bool
    left: int


def expect(
    logits: Array, how: Sampling, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> Expected:
    """The token behind `answer_ids`, by the row's logits [V] for it."""
    processed = penalised(logits, how, prompt_ids, answer_ids)
    if _is_greedy(how):
        return Expected(int(processed.argmax()), _lead(processed) > _error_of(processed), 1)
    scores = processed / how.temperature
    noisy = scores + gumbel_noise(how, len(answer_ids), len(logits))
    error = _error_of(scores)
    kept, clear = _first_filters(scores, how, error)
    # A token at the border of top-p matters only if it would be the one that is drawn.
    surely, perhaps = _nucleus(scores, kept, how.top_p, error)
    token = int(np.where(perhaps, noisy, -np.inf).argmax())
    lead = _lead(np.where(perhaps, noisy, -np.inf))
    decided = clear and bool(surely[token]) and lead > 2 * error
    return Expected(token, decided, int(perhaps.sum()))


def contenders(
    logits: Array,
    how: Sampling,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    gap: float,
) -> set[int]:
    """The tokens that may be drawn where the difference of any two logits may be off by `gap`."""
    processed = penalised(logits, how, prompt_ids, answer_ids)
    if _is_greedy(how):
        return set(np.flatnonzero(processed >= processed.max() - gap).tolist())
    scores, gap = processed / how.temperature, gap / how.temperature
    noisy = scores + gumbel_noise(how, len(answer_ids), len(logits))
    perhaps, surely = np.ones(len(scores), dtype=bool), np.ones(len(scores), dtype=bool)
    if how.min_p > 0:
        above = scores - scores.max() - np.log(how.min_p)
        perhaps, surely = above >= -gap, above >= gap
    if 0 < how.top_k < len(scores):
        last, next_one = np.sort(scores)[::-1][how.top_k - 1 : how.top_k + 1]
        perhaps, surely = perhaps & (scores >= last - gap), surely & (scores > next_one + gap)
    in_nucleus, perhaps = _nucleus(scores, perhaps, how.top_p, gap)
    surely = surely & in_nucleus
    best = noisy[surely].max() if surely.any() else noisy[perhaps].max()
    return set(np.flatnonzero(perhaps & (noisy >= best - gap)).tolist())


def allowed(logits: Array, how: Sampling) -> set[int] | None:
    """The tokens that the filters leave, and those on the border of top-p; None where another
    border is so close to a token that float32 may decide it otherwise."""
    scores = logits / how.temperature
    error = _error_of(scores)
    kept, clear = _first_filters(scores, how, error)
    _, perhaps = _nucleus(scores, kept, how.top_p, error)
    return set(np.flatnonzero(perhaps).tolist()) if clear else None


def penalised(
    logits: Array, how: Sampling, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> Array:
    """Logits after penalties and bias, one token at a time."""
    result: Array = logits.copy()
    for token in {*prompt_ids, *answer_ids}:
        down = how.repetition_penalty if result[token] < 0 else 1 / how.repetition_penalty
        result[token] *= down
    for token in set(answer_ids):
        count = list(answer_ids).count(token)
        result[token] -= how.presence_penalty + how.frequency_penalty * count
    for name, bias in how.logit_bias.items():
        result[int(name)] += bias
    return result


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max()
    result: Array = shifted - np.log(np.exp(shifted).sum())
    return result


def gumbel_noise(how: Sampling, position: int, vocabulary: int) -> Array:
    """For every token; where all may be drawn it is made at once, otherwise one by one."""
    keys = mx.array([row_key(how.seed, position)], dtype=mx.uint32)
    if how.top_p >= 1 and limiting_top_k(how, vocabulary) == 0:
        uniform = np.array(uniform_rows(keys, vocabulary))[0]
    else:
        uniform = np.array(uniform_of(keys, mx.arange(vocabulary)[None]))[0]
    with np.errstate(divide="ignore"):
        noise: Array = -np.log(-np.log(uniform.astype(np.float64)))
    return noise


def _first_filters(scores: Array, how: Sampling, error: float) -> tuple[NDArray[np.bool_], bool]:
    """What min-p and top-k leave, and whether no token is on their borders."""
    kept = np.ones(len(scores), dtype=bool)
    clear = True
    if how.min_p > 0:
        above = scores - scores.max() - np.log(how.min_p)
        above[scores.argmax()] = np.inf  # the likeliest is above any threshold
        kept = above >= 0
        clear = bool(np.abs(above).min() > error)
    order = np.argsort(-scores)
    if 0 < how.top_k < len(scores):
        last, next_one = scores[order[how.top_k - 1]], scores[order[how.top_k]]
        clear = clear and bool(last - next_one > error)
        kept[order[how.top_k :]] = False
    return kept, clear


def _nucleus(
    scores: Array, kept: NDArray[np.bool_], top_p: float, error: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What top-p leaves of the kept: surely, and perhaps."""
    if top_p >= 1:
        return kept, kept
    probabilities = np.exp(log_softmax(np.where(kept, scores, -np.inf)))
    order = np.argsort(-probabilities)
    before = np.empty(len(scores))
    before[order] = np.cumsum(probabilities[order]) - probabilities[order]
    return kept & (before < top_p - error), kept & (before < top_p + error)


def _is_greedy(how: Sampling) -> bool:
    return how.temperature < 1e-5 or how.top_p < 1e-5 or how.top_k == 1


def _error_of(scores: Array) -> float:
    return _ERROR * max(1.0, float(np.abs(scores).max()) / 10)


def _lead(scores: Array) -> float:
    """By how much the highest is above the second."""
    second, first = np.sort(scores)[-2:]
    return float(first - second)
