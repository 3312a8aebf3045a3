"""Pooling: one vector of the hidden states of a row's tokens.

The modes are those of sentence-transformers (sentence_transformer/modules/pooling.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from shared.errors import ModelError
from worker.engine.embedding.config_values import boolean
from worker.engine.embedding.token_batch import TokenBatch

_OLD_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys before version 6, in the order in which their vectors are concatenated."""

_Pool = Callable[[mx.array, mx.array], mx.array]
"""Of hidden states (rows, length, size) and `valid` (rows, length): (rows, size). Rows without a
valid position give any finite vector."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """
    Attributes:
        modes: their vectors are concatenated.
        includes_prompt: whether the tokens of a prompt are pooled, too.
    """

    modes: tuple[str, ...]
    includes_prompt: bool = True

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "Pooling":
        """Read `1_Pooling/config.json`.

        Raises:
            ModelError: a mode is unknown, or a value is invalid.
        """
        named = config.get("pooling_mode")
        if named is None:
            named = [mode for key, mode in _OLD_KEYS.items() if boolean(config, key, False)]
        modes = [named] if isinstance(named, str) else named
        if not isinstance(modes, list) or not all(isinstance(mode, str) for mode in modes):
            raise ModelError(f"pooling_mode is {named!r:.80}, not a mode or a list of them")
        for mode in modes:
            if mode not in POOLING_MODES:
                raise ModelError(f"the pooling mode {mode[:80]!r} is not supported")
        return cls(tuple(modes) or ("mean",), boolean(config, "include_prompt", True))

    def __call__(
        self, hidden: mx.array, batch: TokenBatch, prompt_tokens: Sequence[int] | None = None
    ) -> mx.array:
        """Return (rows, modes x size).

        Args:
            hidden: (rows, length, size), float32.
            prompt_tokens: for each row the tokens at its beginning that are the prompt's.
        """
        valid = batch.valid
        if prompt_tokens is not None and not self.includes_prompt:
            begins = mx.array(list(prompt_tokens))[:, None]
            valid = valid & (mx.arange(batch.length)[None] >= begins)
        vectors = [POOLING_MODES[mode](hidden, valid) for mode in self.modes]
        return mx.concatenate(vectors, axis=-1)


def _sum(hidden: mx.array, weights: mx.array) -> mx.array:
    """The sum of hidden states with a weight for each position; a weight of 0 leaves a position out
    even if its state is not finite."""
    weighted = mx.where(weights[:, :, None] != 0, hidden * weights[:, :, None], 0)
    return weighted.sum(axis=1)


def _count(valid: mx.array) -> mx.array:
    return mx.maximum(valid.sum(axis=1, keepdims=True), 1).astype(mx.float32)


def _at(hidden: mx.array, positions: mx.array) -> mx.array:
    return mx.take_along_axis(hidden, positions[:, None, None], axis=1).squeeze(1)


def _first(hidden: mx.array, valid: mx.array) -> mx.array:
    return _at(hidden, mx.argmax(valid, axis=1))


def _last(hidden: mx.array, valid: mx.array) -> mx.array:
    positions = mx.where(valid, mx.arange(valid.shape[1])[None], 0)
    return _at(hidden, mx.max(positions, axis=1))


def _max(hidden: mx.array, valid: mx.array) -> mx.array:
    lowest = mx.finfo(hidden.dtype).min
    return mx.where(valid[:, :, None], hidden, lowest).max(axis=1)


def _mean(hidden: mx.array, valid: mx.array) -> mx.array:
    return _sum(hidden, valid.astype(hidden.dtype)) / _count(valid)


def _mean_by_root(hidden: mx.array, valid: mx.array) -> mx.array:
    return _sum(hidden, valid.astype(hidden.dtype)) / mx.sqrt(_count(valid))


def _weighted_mean(hidden: mx.array, valid: mx.array) -> mx.array:
    """Weights rise from 1 at the row's first token, a prompt included."""
    weights = mx.arange(1, valid.shape[1] + 1)[None] * valid.astype(hidden.dtype)
    return _sum(hidden, weights) / mx.maximum(weights.sum(axis=1, keepdims=True), 1)


POOLING_MODES: Mapping[str, _Pool] = {
    "cls": _first,
    "lasttoken": _last,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _weighted_mean,
}
