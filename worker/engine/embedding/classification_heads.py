"""Heads that turn the hidden states of a row into one logit for each label.

The definitions: BertForSequenceClassification and its like in transformers.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import LayerNorm

from shared.errors import ModelError
from worker.engine.embedding.activations import Activation, activation
from worker.engine.embedding.config_values import boolean, positive_float, positive_int, string
from worker.engine.embedding.pooling import POOLING_MODES
from worker.engine.embedding.token_batch import TokenBatch

_DEFAULT_LABELS = 2


def label_count(config: Mapping[str, Any]) -> int:
    """Return the number of labels, as transformers finds it.

    Raises:
        ModelError: the value is invalid.
    """
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        return len(named)
    return positive_int(config, "num_labels", _DEFAULT_LABELS)


class FirstTokenHead(Module):
    """Dense, activation and classifier over the first token: BERT, whose pooler is the dense layer,
    RoBERTa (both tanh), and DistilBERT (ReLU)."""

    def __init__(self, hidden_size: int, labels: int, between: Activation) -> None:
        super().__init__()
        self.activation = between
        self.dense = Linear(hidden_size, hidden_size)
        self.classifier = Linear(hidden_size, labels)

    def __call__(self, hidden: mx.array, batch: TokenBatch) -> mx.array:
        """Return logits: (rows, labels)."""
        return self.classifier(self.activation(self.dense(hidden[:, 0])))


class ModernBertHead(Module):
    """Dense, activation, norm and classifier over the first token or the mean."""

    def __init__(self, hidden_size: int, labels: int, config: Mapping[str, Any]) -> None:
        super().__init__()
        pooled = string(config, "classifier_pooling", "cls")
        if pooled not in ("cls", "mean"):
            raise ModelError(f"classifier_pooling {pooled[:80]!r} is not supported")
        self.pool = POOLING_MODES[pooled]
        self.activation = activation(string(config, "classifier_activation", "gelu"))
        self.dense = Linear(
            hidden_size, hidden_size, bias=boolean(config, "classifier_bias", False)
        )
        self.norm = LayerNorm(
            hidden_size,
            eps=positive_float(config, "norm_eps", 1e-5),
            bias=boolean(config, "norm_bias", False),
        )
        self.classifier = Linear(hidden_size, labels)

    def __call__(self, hidden: mx.array, batch: TokenBatch) -> mx.array:
        """Return logits: (rows, labels)."""
        pooled = self.pool(hidden, batch.valid)
        return self.classifier(self.norm(self.activation(self.dense(pooled))))
