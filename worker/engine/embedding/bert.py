"""BERT, and the families that have its layers: RoBERTa, XLM-RoBERTa, CamemBERT and DistilBERT.

The definition: Devlin et al. 2018, arXiv:1810.04805; transformers/models/bert/modeling_bert.py,
roberta/modeling_roberta.py (positions) and distilbert/modeling_distilbert.py.
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
from worker.engine.embedding.attention_masks import padding_mask
from worker.engine.embedding.config_values import natural_int, positive_float, positive_int, string
from worker.engine.embedding.token_batch import TokenBatch

_ROBERTA_PADDING_ID = 1
_DISTILBERT_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class BertShape:
    """The sizes of a network; defaults are those of transformers.

    Attributes:
        positions: entries of the table of positions.
        token_types: entries of the table of token types; 0 if the family has none.
        padding_id: of RoBERTa, whose positions depend on it; 0 in other families, since padding is
            masked.
        is_roberta: whether positions count tokens that are not padding, from `padding_id` + 1 on.
    """

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    activation: str
    norm_epsilon: float
    vocabulary_size: int
    positions: int
    token_types: int
    padding_id: int
    is_roberta: bool

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "BertShape":
        """Read config.json.

        Raises:
            ModelError: a value is invalid, or not supported.
        """
        if config.get("model_type") == "distilbert":
            return _distilbert(config)
        if (kind := config.get("position_embedding_type") or "absolute") != "absolute":
            raise ModelError(f"position_embedding_type {kind!r:.80} is not supported")
        is_roberta = config.get("model_type") != "bert"
        return cls(
            hidden_size=positive_int(config, "hidden_size", 768),
            layers=positive_int(config, "num_hidden_layers", 12),
            heads=positive_int(config, "num_attention_heads", 12),
            intermediate_size=positive_int(config, "intermediate_size", 3072),
            activation=string(config, "hidden_act", "gelu"),
            norm_epsilon=positive_float(config, "layer_norm_eps", 1e-12),
            vocabulary_size=positive_int(config, "vocab_size"),
            positions=positive_int(config, "max_position_embeddings", 512),
            token_types=natural_int(config, "type_vocab_size", 2),
            padding_id=_padding_id(config) if is_roberta else 0,
            is_roberta=is_roberta,
        )


def _padding_id(config: Mapping[str, Any]) -> int:
    found = natural_int(config, "pad_token_id", _ROBERTA_PADDING_ID)
    if found >= positive_int(config, "vocab_size"):
        raise ModelError(f"pad_token_id {found} is outside the vocabulary")
    return found


def _distilbert(config: Mapping[str, Any]) -> BertShape:
    return BertShape(
        hidden_size=positive_int(config, "dim", 768),
        layers=positive_int(config, "n_layers", 6),
        heads=positive_int(config, "n_heads", 12),
        intermediate_size=positive_int(config, "hidden_dim", 3072),
        activation=string(config, "activation", "gelu"),
        norm_epsilon=_DISTILBERT_EPSILON,
        vocabulary_size=positive_int(config, "vocab_size"),
        positions=positive_int(config, "max_position_embeddings", 512),
        token_types=0,
        padding_id=0,
        is_roberta=False,
    )


class BertBody(Module):
    """Attributes:
    max_length: the most tokens of a row, which the table of positions limits.
    """

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        first = shape.padding_id + 1 if shape.is_roberta else 0
        self.hidden_size = shape.hidden_size
        self.vocabulary_size = shape.vocabulary_size
        self.padding_id = shape.padding_id
        self.max_length = shape.positions - first
        if self.max_length < 1:
            raise ModelError(f"max_position_embeddings is {shape.positions}, which is too small")
        self.embeddings = _Embeddings(shape)
        self.layers = [_Layer(shape) for _ in range(shape.layers)]

    def __call__(self, batch: TokenBatch) -> mx.array:
        """Return the hidden states: (rows, length, hidden_size)."""
        mask = padding_mask(batch)
        hidden = self.embeddings(batch)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


class _Embeddings(Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.padding_id = shape.padding_id
        self.is_roberta = shape.is_roberta
        self.word_embeddings = Embedding(shape.vocabulary_size, shape.hidden_size)
        self.position_embeddings = Embedding(shape.positions, shape.hidden_size)
        if shape.token_types > 0:
            self.token_type_embeddings = Embedding(shape.token_types, shape.hidden_size)
        self.token_types = shape.token_types
        self.norm = LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)

    def __call__(self, batch: TokenBatch) -> mx.array:
        hidden = self.word_embeddings(batch.ids) + self.position_embeddings(self._positions(batch))
        if self.token_types > 0:
            types = batch.token_types if self.token_types > 1 else None
            hidden += self.token_type_embeddings(mx.array(0) if types is None else types)
        return cast(mx.array, self.norm(hidden))

    def _positions(self, batch: TokenBatch) -> mx.array:
        if not self.is_roberta:
            return mx.arange(batch.length)
        is_counted = (batch.ids != self.padding_id).astype(mx.int32)
        return mx.cumsum(is_counted, axis=1) * is_counted + self.padding_id


class _Layer(Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        size, epsilon = shape.hidden_size, shape.norm_epsilon
        if size % shape.heads:
            raise ModelError(f"hidden_size {size} is not a multiple of {shape.heads} heads")
        self.heads = shape.heads
        self.scale = (size // shape.heads) ** -0.5
        self.activation = activation(shape.activation)
        self.query = Linear(size, size)
        self.key = Linear(size, size)
        self.value = Linear(size, size)
        self.attention_output = Linear(size, size)
        self.attention_norm = LayerNorm(size, eps=epsilon)
        self.intermediate = Linear(size, shape.intermediate_size)
        self.output = Linear(shape.intermediate_size, size)
        self.output_norm = LayerNorm(size, eps=epsilon)

    def __call__(self, hidden: mx.array, mask: mx.array | None) -> mx.array:
        seen = mx.fast.scaled_dot_product_attention(
            self._split(self.query(hidden)),
            self._split(self.key(hidden)),
            self._split(self.value(hidden)),
            scale=self.scale,
            mask=mask,
        )
        merged = seen.transpose(0, 2, 1, 3).reshape(hidden.shape)
        hidden = self.attention_norm(hidden + self.attention_output(merged))
        inner = self.activation(self.intermediate(hidden))
        return cast(mx.array, self.output_norm(hidden + self.output(inner)))

    def _split(self, x: mx.array) -> mx.array:
        """(rows, length, size) to (rows, heads, length, size / heads)."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(0, 2, 1, 3)
