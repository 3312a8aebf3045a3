"""Samples a token for each row of scores, by the Gumbel-max trick.

The randomness of a row comes from a key made of (seed, position) alone. Top-k and top-p consider
the 256 likeliest tokens, and more if the nucleus is wider; noise is generated for these tokens
only, each from the row's key and the token's id.

Shapes: scores [G, V] are logits divided by the temperature, keys [G, 2] are the random keys of the
rows, the result is [G] token ids.
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
"""Polynomial of 2^f on (-1, 0], lowest power first: least squares at Chebyshev nodes, to 1e-7."""


class SamplingGroup:
    """Rows of a batch with the same sampling method, each with its own parameters.

    Attributes:
        indices: the rows' indices in the batch.
    """

    def __init__(
        self, indices: Sequence[int], samplings: Sequence[Sampling], vocabulary: int
    ) -> None:
        self.indices = list(indices)
        self._samplings = list(samplings)
        self._vocabulary = vocabulary
        limits = [limiting_top_k(each, vocabulary) for each in samplings]
        self.temperature = column([each.temperature for each in samplings])
        self.top_p = column([each.top_p for each in samplings])
        self.top_k = column([limit or math.inf for limit in limits])
        self.log_min_p = column([_log(each.min_p) for each in samplings])
        self.any_min_p = any(each.min_p > 0 for each in samplings)
        self.any_top_p = any(each.top_p < 1 for each in samplings)
        self.any_without_top_k = not all(limits)

    def keys(self, positions: Sequence[int]) -> mx.array:
        """Return the random keys [G, 2] of one step; `positions` are those of the whole batch."""
        pairs = zip(self._samplings, self.indices, strict=True)
        return mx.array(
            [row_key(each.seed, positions[index]) for each, index in pairs], dtype=mx.uint32
        )

    def part(self, rows: Sequence[int]) -> "SamplingGroup":
        """Return a group of some rows, given by their index in this group."""
        indices = [self.indices[row] for row in rows]
        samplings = [self._samplings[row] for row in rows]
        return SamplingGroup(indices, samplings, self._vocabulary)


def limiting_top_k(sampling: Sampling, vocabulary: int) -> int:
    """Return the top-k of a row; 0 if it allows every token."""
    return sampling.top_k if sampling.top_k < vocabulary else 0


def row_key(seed: int, position: int) -> tuple[int, int]:
    """Return the random key of one sampled token: 64 bits from the seed and the token's index."""
    digest = hashlib.blake2b(
        seed.to_bytes(8, "big") + position.to_bytes(8, "big"), digest_size=8
    ).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")


def uniform_rows(keys: mx.array, vocabulary: int) -> mx.array:
    """Return [G, V] uniform numbers in [0, 1); those of a row depend on its key alone."""
    sampled: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(vocabulary,), key=key))(keys)
    return sampled


def uniform_of(keys: mx.array, ids: mx.array) -> mx.array:
    """Return [G, K] numbers in [0, 1) for some tokens per row, from the row's key and the id."""
    spread = ids.astype(mx.uint32) * mx.array(_SPREAD, dtype=mx.uint32)
    own = mx.stack([keys[:, :1] ^ spread, mx.broadcast_to(keys[:, 1:], ids.shape)], axis=-1)
    sampled: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(), key=key))(
        own.reshape(-1, 2)
    )
    return sampled.reshape(ids.shape)


def sample_plain(scores: mx.array, keys: mx.array, group: SamplingGroup) -> mx.array:
    """Sample from all tokens that min-p allows."""
    if group.any_min_p:
        threshold = mx.max(scores, axis=-1, keepdims=True) + group.log_min_p
        scores = mx.where(scores < threshold, -mx.inf, scores)
    return mx.argmax(scores + _gumbel(uniform_rows(keys, scores.shape[-1])), axis=-1)


def sample_filtered(
    scores: mx.array, keys: mx.array, group: SamplingGroup, counts: Sequence[int] = _COUNTS
) -> mx.array:
    """Sample from the tokens that min-p, top-k and top-p allow, among the likeliest `counts[0]`.

    Rows that allow more tokens are sampled again with the next count. Detecting such rows waits for
    the device, but only if a row has a top-p and no top-k.
    """
    vocabulary = scores.shape[-1]
    count = min(counts[0], vocabulary)
    ids, ranked = top_tokens(scores, count)
    best = ranked[:, :1]
    allowed = mx.arange(count) < group.top_k
    if group.any_min_p:
        allowed = allowed & (ranked >= best + group.log_min_p)
    outside = None
    if group.any_top_p:
        weights = mx.where(allowed, mx.exp(ranked - best), 0.0)
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
            more = allowed[:, -1:] & (reached[:, -1:] < enough)
            outside = (more & mx.isinf(group.top_k))[:, 0]
        allowed = allowed & ((reached - weights < enough) | (group.top_p >= 1))
    tokens = _sample_ranked(ids, ranked, allowed, keys)
    if outside is None or not mx.any(outside).item():
        return tokens
    indices = [row for row, is_outside in enumerate(outside.tolist()) if is_outside]  # type: ignore[arg-type]
    rows = mx.array(indices)
    tokens[rows] = sample_filtered(scores[rows], keys[rows], group.part(indices), counts[1:])
    return tokens


def sample_full_vocabulary(scores: mx.array, keys: mx.array, group: SamplingGroup) -> mx.array:
    """Like `sample_filtered`, but ranks the whole vocabulary."""
    return sample_filtered(scores, keys, group, (scores.shape[-1],))


def top_tokens(scores: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Return ids and scores, [G, count] each, of the highest scores, the highest first."""
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
    """Return [G, K] candidate ids that include the `count` likeliest tokens: the tokens of the
    blocks with the highest maxima. Ranking only these takes a quarter of the time."""
    rows, size = scores.shape
    blocks = size // _BLOCK  # block b has the tokens b, b + blocks, b + 2 * blocks, ...
    heads = mx.max(scores[:, : blocks * _BLOCK].reshape(rows, _BLOCK, blocks), axis=1)
    best = _highest(heads, count)
    ids = (best[:, None, :] + mx.arange(0, blocks * _BLOCK, blocks)[:, None]).reshape(rows, -1)
    left = mx.arange(blocks * _BLOCK, size)
    return mx.concatenate([ids, mx.broadcast_to(left, (rows, left.size))], axis=-1)


def _highest(scores: mx.array, count: int) -> mx.array:
    """Return [G, count] the indices of the highest scores, unordered."""
    size = scores.shape[-1]
    if count == size:
        return mx.broadcast_to(mx.arange(size), scores.shape)
    kth = min(size - count, size - 1)  # `count` may be 0
    return mx.argpartition(scores, kth=kth, axis=-1)[:, size - count :]


def column(values: Sequence[float]) -> mx.array:
    """Return a float32 column [G, 1]."""
    return mx.array(list(values), dtype=mx.float32)[:, None]


def _sample_ranked(ids: mx.array, ranked: mx.array, allowed: mx.array, keys: mx.array) -> mx.array:
    noise = _gumbel(uniform_of(keys, ids))
    best = mx.argmax(mx.where(allowed, ranked + noise, -mx.inf), axis=-1, keepdims=True)
    return mx.take_along_axis(ids, best, axis=-1)[:, 0]


def _gumbel(uniform: mx.array) -> mx.array:
    """Return Gumbel noise from uniform numbers, like `mx.random.gumbel` with the same key."""
    return -mx.log(-mx.log(uniform))


def _exp_below_0(values: mx.array) -> mx.array:
    """Return the exponential of values that are 0 at most. On a CPU MLX's `exp` takes three times
    as long as this polynomial (measured: 12 and 4 ms for 16 rows of 49,152)."""
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
