"""How the next token is drawn. Every draw is a function of logits, parameters, seed and
position alone, so that a row gives the same token alone, in a batch, or on another worker.

The order is vLLM's: penalties and bias on the logits, then temperature, min-p, top-k, top-p,
and a draw by the Gumbel-max trick with a key made from (seed, position).
"""

import hashlib
from collections.abc import Callable

import mlx.core as mx

from worker.link.messages import Sampling

_GREEDY_BELOW = 1e-5
"""Dividing by a smaller temperature overflows float32 (vLLM draws the same line), and a
smaller top-p can become 0 in it."""

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


def greedy(logprobs: mx.array) -> mx.array:
    """The likeliest token of each row: [B, V] -> [B]. One function for all greedy rows, so
    that the batch samples them in one call."""
    return mx.argmax(logprobs, axis=-1)


def make_sampler(sampling: Sampling, position: int) -> Sampler:
    """The sampler of one sequence whose next token has index `position`.

    The sampler takes [1, V] log-probabilities, returns [1] token ids, and counts its calls:
    use it exactly once for each token, in order.
    """
    if min(sampling.temperature, sampling.top_p) < _GREEDY_BELOW or sampling.top_k == 1:
        return greedy
    return _RowSampler(sampling, position)


def make_processors(sampling: Sampling, prompt_length: int) -> list[LogitsProcessor]:
    """The penalties and bias of one sequence; empty when it asks for none.

    A processor takes the ids of prompt and answer so far, [L], and logits [1, V].
    """
    processors: list[LogitsProcessor] = []
    if sampling.repetition_penalty != 1.0:
        processors.append(_repetition(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        processors.append(
            _presence_and_frequency(
                sampling.presence_penalty, sampling.frequency_penalty, prompt_length
            )
        )
    if sampling.logit_bias:
        processors.append(_bias(sampling.logit_bias))
    return processors


def row_key(seed: int, position: int) -> tuple[int, int]:
    """The random key of one draw: 64 bits that mix the seed and the token's index."""
    digest = hashlib.blake2b(
        seed.to_bytes(8, "big") + position.to_bytes(8, "big"), digest_size=8
    ).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")


class _RowSampler:
    def __init__(self, sampling: Sampling, position: int) -> None:
        self._sampling = sampling
        self._position = position

    def __call__(self, logprobs: mx.array) -> mx.array:
        key = mx.array(row_key(self._sampling.seed, self._position), dtype=mx.uint32)
        self._position += 1
        scores = logprobs.astype(mx.float32) / self._sampling.temperature
        if self._sampling.min_p > 0:
            scores = _keep_min_p(scores, self._sampling.min_p)
        if self._sampling.top_k > 0 or self._sampling.top_p < 1:
            scores = _keep_top(scores, self._sampling.top_k, self._sampling.top_p)
        return mx.argmax(scores + mx.random.gumbel(scores.shape, key=key), axis=-1)


def _keep_min_p(scores: mx.array, min_p: float) -> mx.array:
    """Drop tokens less likely than `min_p` times the likeliest."""
    threshold = mx.max(scores, axis=-1, keepdims=True) + mx.log(mx.array(min_p))
    return mx.where(scores < threshold, -mx.inf, scores)


def _keep_top(scores: mx.array, top_k: int, top_p: float) -> mx.array:
    """Keep the `top_k` likeliest (0: all), then the fewest whose probability reaches `top_p`."""
    order = mx.argsort(-scores, axis=-1)
    ranked = mx.take_along_axis(scores, order, axis=-1)
    if 0 < top_k < ranked.shape[-1]:
        ranked = mx.where(mx.arange(ranked.shape[-1]) < top_k, ranked, -mx.inf)
    if top_p < 1:
        probabilities = mx.softmax(ranked, axis=-1)
        before = mx.cumsum(probabilities, axis=-1) - probabilities
        ranked = mx.where(before < top_p, ranked, -mx.inf)
    return mx.put_along_axis(mx.zeros_like(scores), order, ranked, axis=-1)


def _repetition(penalty: float) -> LogitsProcessor:
    """Weaken every token of prompt and answer (CTRL, arXiv:1909.05858, section 4.1)."""

    def process(ids: mx.array, logits: mx.array) -> mx.array:
        seen = logits[:, ids]
        logits[:, ids] = mx.where(seen < 0, seen * penalty, seen / penalty)
        return logits

    return process


def _presence_and_frequency(
    presence: float, frequency: float, prompt_length: int
) -> LogitsProcessor:
    """Weaken the tokens of the answer, once each and by count, as OpenAI's API defines it."""

    def process(ids: mx.array, logits: mx.array) -> mx.array:
        answer = ids[prompt_length:]
        counts = mx.zeros(logits.shape[-1:]).at[answer].add(1.0)
        return logits - frequency * counts - presence * (counts > 0)

    return process


def _bias(bias: dict[str, float]) -> LogitsProcessor:
    ids = mx.array([int(token) for token in bias])
    values = mx.array(list(bias.values()))

    def process(_: mx.array, logits: mx.array) -> mx.array:
        logits[:, ids] = logits[:, ids] + values
        return logits

    return process
