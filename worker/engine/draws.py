"""Drawing a token for each row of scores, by the Gumbel-max trick.

The randomness of a row comes from a key made of (seed, position) alone. Top-k and top-p look
at the 256 likeliest tokens only, unless more belong to the nucleus.

Shapes: scores [G, V] are logits divided by the temperature, uniform [G, V] random numbers,
the result [G] token ids.
"""

import hashlib
import math
from collections.abc import Sequence

import mlx.core as mx

from worker.link.messages import Sampling

CANDIDATES = 256


class DrawGroup:
    """Rows of a batch that are drawn in the same way, each with its own parameters.

    Attributes:
        indices: the rows' places in the batch.
    """

    def __init__(
        self, indices: Sequence[int], samplings: Sequence[Sampling], vocabulary: int
    ) -> None:
        self.indices = list(indices)
        self._samplings = list(samplings)
        self._vocabulary = vocabulary
        limits = [limiting_top_k(how, vocabulary) for how in samplings]
        self.temperature = column([how.temperature for how in samplings])
        self.top_p = column([how.top_p for how in samplings])
        self.top_k = column([limit or math.inf for limit in limits])
        self.log_min_p = column([_log(how.min_p) for how in samplings])
        self.any_min_p = any(how.min_p > 0 for how in samplings)
        self.any_top_p = any(how.top_p < 1 for how in samplings)
        self.any_without_top_k = not all(limits)

    def keys(self, positions: Sequence[int]) -> mx.array:
        """[G, 2] the random keys of one step; `positions` are those of the whole batch."""
        pairs = zip(self._samplings, self.indices, strict=True)
        return mx.array(
            [row_key(how.seed, positions[index]) for how, index in pairs], dtype=mx.uint32
        )

    def part(self, places: Sequence[int]) -> "DrawGroup":
        """Some of its rows, by their place in it."""
        indices = [self.indices[place] for place in places]
        samplings = [self._samplings[place] for place in places]
        return DrawGroup(indices, samplings, self._vocabulary)


def limiting_top_k(how: Sampling, vocabulary: int) -> int:
    """The top-k of a row; 0 where it leaves every token."""
    return how.top_k if how.top_k < vocabulary else 0


def row_key(seed: int, position: int) -> tuple[int, int]:
    """The random key of one draw: 64 bits that mix the seed and the token's index."""
    digest = hashlib.blake2b(
        seed.to_bytes(8, "big") + position.to_bytes(8, "big"), digest_size=8
    ).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")


def uniform_rows(keys: mx.array, vocabulary: int) -> mx.array:
    """[G, V] numbers in [0, 1); those of a row depend on its key alone."""
    drawn: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(vocabulary,), key=key))(keys)
    return drawn


def draw_plain(scores: mx.array, uniform: mx.array, group: DrawGroup) -> mx.array:
    """From all tokens that min-p leaves."""
    if group.any_min_p:
        threshold = mx.max(scores, axis=-1, keepdims=True) + group.log_min_p
        scores = mx.where(scores < threshold, -mx.inf, scores)
    return mx.argmax(scores + _gumbel(uniform), axis=-1)


def draw_filtered(scores: mx.array, uniform: mx.array, group: DrawGroup) -> mx.array:
    """From what min-p, top-k and top-p leave, if the candidates hold all of that.

    Rows where they do not are drawn again from all tokens; to know costs a wait for the
    device, only where a row has a top-p and no top-k.
    """
    vocabulary = scores.shape[-1]
    count = min(CANDIDATES, vocabulary)
    ids, ranked = likeliest(scores, count)
    threshold = ranked[:, :1] + group.log_min_p
    kept = (ranked >= threshold) & (mx.arange(count) < group.top_k)
    outside = None
    if group.any_top_p:
        total = mx.logsumexp(mx.where(kept, ranked, -mx.inf), axis=-1, keepdims=True)
        if group.any_without_top_k:
            left = mx.where(scores < threshold, -mx.inf, scores)
            whole = mx.logsumexp(left, axis=-1, keepdims=True)
            total = mx.where(mx.isinf(group.top_k), whole, total)
        probabilities = mx.where(kept, mx.exp(ranked - total), 0.0)
        reached = mx.cumsum(probabilities, axis=-1)
        if group.any_without_top_k and count < vocabulary:
            more = kept[:, -1:] & (reached[:, -1:] < group.top_p)
            outside = (more & mx.isinf(group.top_k))[:, 0]
        kept = kept & ((reached - probabilities < group.top_p) | (group.top_p >= 1))
    tokens = _draw_ranked(ids, ranked, kept, uniform)
    if outside is None or not mx.any(outside).item():
        return tokens
    places = [place for place, is_outside in enumerate(outside.tolist()) if is_outside]  # type: ignore[arg-type]
    rows = mx.array(places)
    tokens[rows] = draw_wide(scores[rows], uniform[rows], group.part(places))
    return tokens


def draw_wide(scores: mx.array, uniform: mx.array, group: DrawGroup) -> mx.array:
    """As `draw_filtered`, with the whole vocabulary in order."""
    ids, ranked = likeliest(scores, scores.shape[-1])
    in_reach = mx.arange(scores.shape[-1]) < group.top_k
    kept = in_reach & (ranked >= ranked[:, :1] + group.log_min_p)
    probabilities = mx.softmax(mx.where(kept, ranked, -mx.inf), axis=-1)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    kept = kept & ((before < group.top_p) | (group.top_p >= 1))
    return _draw_ranked(ids, ranked, kept, uniform)


def likeliest(scores: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and scores, [G, count] each, of the highest scores, the highest first."""
    if count < scores.shape[-1]:
        ids = mx.argpartition(-scores, kth=count, axis=-1)[:, :count]
        found = mx.take_along_axis(scores, ids, axis=-1)
        order = mx.argsort(-found, axis=-1)
        ids = mx.take_along_axis(ids, order, axis=-1)
    else:
        ids = mx.argsort(-scores, axis=-1)
    return ids, mx.take_along_axis(scores, ids, axis=-1)


def column(values: Sequence[float]) -> mx.array:
    """[G, 1] float32."""
    return mx.array(list(values), dtype=mx.float32)[:, None]


def _draw_ranked(ids: mx.array, ranked: mx.array, kept: mx.array, uniform: mx.array) -> mx.array:
    noise = _gumbel(mx.take_along_axis(uniform, ids, axis=-1))
    best = mx.argmax(mx.where(kept, ranked + noise, -mx.inf), axis=-1, keepdims=True)
    return mx.take_along_axis(ids, best, axis=-1)[:, 0]


def _gumbel(uniform: mx.array) -> mx.array:
    """Gumbel noise, as `mx.random.gumbel` makes it of the same key."""
    return -mx.log(-mx.log(uniform))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
