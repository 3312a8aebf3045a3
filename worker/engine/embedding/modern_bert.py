"""ModernBERT: rotary positions, gated MLPs, and layers that see a window of the text or all of it.

The definition: Warner et al. 2024, arXiv:2412.13663;
transformers/models/modernbert/modeling_modernbert.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import LayerNorm

from shared.errors import ModelError
from worker.engine.embedding.activations import activation
from worker.engine.embedding.attention_masks import padding_mask, window_mask
from worker.engine.embedding.config_values import (
    boolean,
    positive_float,
    positive_int,
    string,
)
from worker.engine.embedding.layer_types import FULL, SLIDING, layer_types, rope_theta
from worker.engine.embedding.token_batch import TokenBatch


@dataclass(frozen=True, slots=True)
class ModernBertShape:
    """The sizes of a network; defaults are those of transformers.

    Attributes:
        layer_types: for each layer `full_attention` or `sliding_attention`.
        reach: how many positions a sliding layer sees to each side.
        thetas: of the rotary positions, by layer type.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    activation: str
    norm_epsilon: float
    vocabulary_size: int
    positions: int
    layer_types: tuple[str, ...]
    reach: int
    thetas: Mapping[str, float]
    has_norm_bias: bool
    has_attention_bias: bool
    has_mlp_bias: bool

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "ModernBertShape":
        """Read config.json.

        Raises:
            ModelError: a value is invalid, or not supported.
        """
        layers = positive_int(config, "num_hidden_layers", 22)
        every = positive_int(config, "global_attn_every_n_layers", 3)
        default = [SLIDING if index % every else FULL for index in range(layers)]
        return cls(
            hidden_size=positive_int(config, "hidden_size", 768),
            intermediate_size=positive_int(config, "intermediate_size", 1152),
            heads=positive_int(config, "num_attention_heads", 12),
            activation=string(config, "hidden_activation", "gelu"),
            norm_epsilon=positive_float(config, "norm_eps", 1e-5),
            vocabulary_size=positive_int(config, "vocab_size"),
            positions=positive_int(config, "max_position_embeddings", 8192),
            layer_types=layer_types(config, layers, default),
            reach=positive_int(config, "local_attention", 128) // 2,
            thetas={
                FULL: rope_theta(config, FULL, "global_rope_theta", 160_000.0),
                SLIDING: rope_theta(config, SLIDING, "local_rope_theta", 10_000.0),
            },
            has_norm_bias=boolean(config, "norm_bias", False),
            has_attention_bias=boolean(config, "attention_bias", False),
            has_mlp_bias=boolean(config, "mlp_bias", False),
        )


class ModernBertBody(Module):
    def __init__(self, shape: ModernBertShape) -> None:
        super().__init__()
        self.hidden_size = shape.hidden_size
        self.vocabulary_size = shape.vocabulary_size
        self.padding_id = 0  # any will do, since padding is masked
        self.max_length = shape.positions
        self.reach = shape.reach
        self.embeddings = _Embeddings(shape)
        self.layers = [_Layer(shape, index) for index in range(len(shape.layer_types))]
        self.final_norm = _norm(shape)

    def __call__(self, batch: TokenBatch) -> mx.array:
        """Return the hidden states: (rows, length, hidden_size)."""
        masks = {FULL: padding_mask(batch), SLIDING: window_mask(batch, self.reach)}
        hidden = self.embeddings(batch.ids)
        for layer in self.layers:
            hidden = layer(hidden, masks[layer.layer_type])
        return cast(mx.array, self.final_norm(hidden))


def _norm(shape: ModernBertShape) -> LayerNorm:
    return LayerNorm(shape.hidden_size, eps=shape.norm_epsilon, bias=shape.has_norm_bias)


class _Embeddings(Module):
    def __init__(self, shape: ModernBertShape) -> None:
        super().__init__()
        self.tok_embeddings = Embedding(shape.vocabulary_size, shape.hidden_size)
        self.norm = _norm(shape)

    def __call__(self, ids: mx.array) -> mx.array:
        return cast(mx.array, self.norm(self.tok_embeddings(ids)))


class _Layer(Module):
    def __init__(self, shape: ModernBertShape, index: int) -> None:
        super().__init__()
        self.layer_type = shape.layer_types[index]
        if index > 0:
            self.attn_norm = _norm(shape)
        self.is_first = index == 0
        self.attn = _Attention(shape, shape.thetas[self.layer_type])
        self.mlp_norm = _norm(shape)
        self.mlp = _GatedMlp(shape)

    def __call__(self, hidden: mx.array, mask: mx.array | None) -> mx.array:
        hidden = hidden + self.attn(hidden if self.is_first else self.attn_norm(hidden), mask)
        return hidden + self.mlp(self.mlp_norm(hidden))


class _Attention(Module):
    def __init__(self, shape: ModernBertShape, theta: float) -> None:
        super().__init__()
        size, bias = shape.hidden_size, shape.has_attention_bias
        if size % shape.heads:
            raise ModelError(f"hidden_size {size} is not a multiple of {shape.heads} heads")
        self.heads = shape.heads
        self.head_size = size // shape.heads
        self.theta = theta
        self.Wqkv = Linear(size, 3 * size, bias=bias)
        self.Wo = Linear(size, size, bias=bias)

    def __call__(self, hidden: mx.array, mask: mx.array | None) -> mx.array:
        rows, length, _ = hidden.shape
        split = self.Wqkv(hidden).reshape(rows, length, 3, self.heads, self.head_size)
        queries, keys, values = split.transpose(2, 0, 3, 1, 4)
        seen = mx.fast.scaled_dot_product_attention(
            self._rotate(queries),
            self._rotate(keys),
            values,
            scale=self.head_size**-0.5,
            mask=mask,
        )
        return self.Wo(seen.transpose(0, 2, 1, 3).reshape(hidden.shape))

    def _rotate(self, x: mx.array) -> mx.array:
        return mx.fast.rope(
            x, self.head_size, traditional=False, base=self.theta, scale=1.0, offset=0
        )


class _GatedMlp(Module):
    def __init__(self, shape: ModernBertShape) -> None:
        super().__init__()
        size, inner = shape.hidden_size, shape.intermediate_size
        self.activation = activation(shape.activation)
        self.Wi = Linear(size, 2 * inner, bias=shape.has_mlp_bias)
        self.Wo = Linear(inner, size, bias=shape.has_mlp_bias)

    def __call__(self, hidden: mx.array) -> mx.array:
        inner, gate = mx.split(self.Wi(hidden), 2, axis=-1)
        return self.Wo(self.activation(inner) * gate)
