"""Drawing a token for each row of scores, by the Gumbel-max trick.

The randomness of a row comes from a key made of (seed, position) alone. Top-k and top-p look
at the 256 likeliest tokens only, at more where the nucleus is wider; noise is made for these
alone, each from the row's key and the token's id.

Shapes: scores [G, V] are logits divided by the temperature, keys [G, 2] those of the rows,
the result [G] token ids.
"""

import hashlib
import math
import sys
from collections.abc import Sequence

import mlx.core as mx

from worker.engine.device import on_gpu
from worker.link.orders import Sampling

CANDIDATES = 256
_COUNTS = (CANDIDATES, 32 * CANDIDATES, sys.maxsize)
_SPREAD = 0x9E3779B9  # 2^32 / golden ratio
_BLOCK = 16
_EXP2 = (1.0, 0.6931432016, 0.2401794895, 0.0552996071, 0.0092108756, 0.0009475536)
"""2^f on (-1, 0], lowest power first: the least squares at Chebyshev nodes, within 1e-7."""


class SamplingGroup:
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

    def part(self, places: Sequence[int]) -> "SamplingGroup":
        """Some of its rows, by their place in it."""
        indices = [self.indices[place] for place in places]
        samplings = [self._samplings[place] for place in places]
        return SamplingGroup(indices, samplings, self._vocabulary)


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
    sampled: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(vocabulary,), key=key))(keys)
    return sampled


def uniform_of(keys: mx.array, ids: mx.array) -> mx.array:
    """[G, K] numbers in [0, 1) for some tokens of each row, each of its key and its id."""
    spread = ids.astype(mx.uint32) * mx.array(_SPREAD, dtype=mx.uint32)
    own = mx.stack([keys[:, :1] ^ spread, mx.broadcast_to(keys[:, 1:], ids.shape)], axis=-1)
    sampled: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(), key=key))(
        own.reshape(-1, 2)
    )
    return sampled.reshape(ids.shape)


def sample_plain(scores: mx.array, keys: mx.array, group: SamplingGroup) -> mx.array:
    """From all tokens that min-p leaves."""
    if group.any_min_p:
        threshold = mx.max(scores, axis=-1, keepdims=True) + group.log_min_p
        scores = mx.where(scores < threshold, -mx.inf, scores)
    return mx.argmax(scores + _gumbel(uniform_rows(keys, scores.shape[-1])), axis=-1)


def sample_filtered(
    scores: mx.array, keys: mx.array, group: SamplingGroup, counts: Sequence[int] = _COUNTS
) -> mx.array:
    """From what min-p, top-k and top-p leave, if that is among the likeliest `counts[0]`.

    Rows where it is not are drawn again from more; to know costs a wait for the device, only
    where a row has a top-p and no top-k.
    """
    vocabulary = scores.shape[-1]
    count = min(counts[0], vocabulary)
    ids, ranked = top_tokens(scores, count)
    best = ranked[:, :1]
    kept = mx.arange(count) < group.top_k
    if group.any_min_p:
        kept = kept & (ranked >= best + group.log_min_p)
    outside = None
    if group.any_top_p:
        weights = mx.where(kept, mx.exp(ranked - best), 0.0)
        total = mx.sum(weights, axis=-1, keepdims=True)
        if group.any_without_top_k:
            all_weights = _exp_below_0(scores - best)
            if group.any_min_p:
                all_weights = mx.where(scores < best + group.log_min_p, 0.0, all_weights)
            whole = mx.sum(all_weights, axis=-1, keepdims=True)
            total = mx.where(mx.isinf(group.top_k), whole, total)
        reached = mx.cumsum(weights, axis=-1)
        enough = group.top_p * total
        if group.any_without_top_k and count < vocabulary:
            more = kept[:, -1:] & (reached[:, -1:] < enough)
            outside = (more & mx.isinf(group.top_k))[:, 0]
        kept = kept & ((reached - weights < enough) | (group.top_p >= 1))
    tokens = _sample_ranked(ids, ranked, kept, keys)
    if outside is None or not mx.any(outside).item():
        return tokens
    places = [place for place, is_outside in enumerate(outside.tolist()) if is_outside]  # type: ignore[arg-type]
    rows = mx.array(places)
    tokens[rows] = sample_filtered(scores[rows], keys[rows], group.part(places), counts[1:])
    return tokens


def sample_full_vocabulary(scores: mx.array, keys: mx.array, group: SamplingGroup) -> mx.array:
    """As `sample_filtered`, with the whole vocabulary in order."""
    return sample_filtered(scores, keys, group, (scores.shape[-1],))


def top_tokens(scores: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and scores, [G, count] each, of the highest scores, the highest first."""
    if 0 < 2 * _BLOCK * count < scores.shape[-1]:
        ids = _ids_of_best_blocks(scores, count)
        found = mx.take_along_axis(scores, ids, axis=-1)
        ids = mx.take_along_axis(ids, _highest(found, count), axis=-1)
    else:
        ids = _highest(scores, count)
    found = mx.take_along_axis(scores, ids, axis=-1)
    order = mx.argsort(-found, axis=-1)
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(found, order, axis=-1)


def _ids_of_best_blocks(scores: mx.array, count: int) -> mx.array:
    """[G, K] the ids of some tokens, the `count` likeliest among them: those of the blocks with
    the likeliest tokens. To look at these alone takes a quarter of the time."""
    rows, size = scores.shape
    blocks = size // _BLOCK  # block b has the tokens b, b + blocks, b + 2 * blocks, ...
    heads = mx.max(scores[:, : blocks * _BLOCK].reshape(rows, _BLOCK, blocks), axis=1)
    best = _highest(heads, count)
    ids = (best[:, None, :] + mx.arange(0, blocks * _BLOCK, blocks)[:, None]).reshape(rows, -1)
    left = mx.arange(blocks * _BLOCK, size)
    return mx.concatenate([ids, mx.broadcast_to(left, (rows, left.size))], axis=-1)


def _highest(scores: mx.array, count: int) -> mx.array:
    """[G, count] where the highest scores are, in no order."""
    size = scores.shape[-1]
    if count == size:
        return mx.broadcast_to(mx.arange(size), scores.shape)
    kth = min(size - count, size - 1)  # none at all are asked for at times
    return mx.argpartition(scores, kth=kth, axis=-1)[:, size - count :]


def column(values: Sequence[float]) -> mx.array:
    """[G, 1] float32."""
    return mx.array(list(values), dtype=mx.float32)[:, None]


def _sample_ranked(ids: mx.array, ranked: mx.array, kept: mx.array, keys: mx.array) -> mx.array:
    noise = _gumbel(uniform_of(keys, ids))
    best = mx.argmax(mx.where(kept, ranked + noise, -mx.inf), axis=-1, keepdims=True)
    return mx.take_along_axis(ids, best, axis=-1)[:, 0]


def _gumbel(uniform: mx.array) -> mx.array:
    """Gumbel noise, as `mx.random.gumbel` makes it of the same key."""
    return -mx.log(-mx.log(uniform))


def _exp_below_0(values: mx.array) -> mx.array:
    """The exponential of a whole vocabulary, of values that are 0 at most. On a CPU MLX's `exp`
    takes three times as long as these products (measured: 12 and 4 ms for 16 rows of 49,152)."""
    if on_gpu():
        return mx.exp(values)
    powers = mx.maximum(values * math.log2(math.e), -126.0)
    whole = powers.astype(mx.int32)
    rest = powers - whole.astype(mx.float32)
    result = _EXP2[-1] * rest
    for coefficient in _EXP2[-2:0:-1]:
        result = (result + coefficient) * rest
    return (result + _EXP2[0]) * ((whole + 127) << 23).view(mx.float32)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
