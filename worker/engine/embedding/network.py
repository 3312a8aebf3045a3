"""A network of a supported family, with its weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import mlx.core as mx
from mlx.nn.layers.activations import relu
from mlx.nn.layers.base import Module
from mlx_lm.utils import load_model

from shared.errors import ModelError
from worker.engine.device import on_gpu
from worker.engine.embedding.bert import BertBody, BertShape
from worker.engine.embedding.classification_heads import (
    FirstTokenHead,
    ModernBertHead,
    label_count,
)
from worker.engine.embedding.config_values import values_of
from worker.engine.embedding.decoder_body import Gemma3Body, Qwen3Body
from worker.engine.embedding.modern_bert import ModernBertBody, ModernBertShape
from worker.engine.embedding.token_batch import TokenBatch
from worker.engine.embedding.weight_names import (
    BERT_NAMES,
    DISTILBERT_NAMES,
    MODERN_BERT_NAMES,
    ROBERTA_NAMES,
    Rename,
    WeightNames,
    part_names,
)
from worker.engine.load_errors import loading_error

EmbeddingKind = Literal["embedding", "classification"]
_Config = Mapping[str, Any]


class Body(Protocol):
    """
    Attributes:
        max_length: the most tokens of a row.
    """

    hidden_size: int
    vocabulary_size: int
    padding_id: int
    max_length: int

    def __call__(self, batch: TokenBatch) -> mx.array:
        """Return the hidden states: (rows, length, hidden_size)."""


@dataclass(frozen=True, slots=True)
class Family:
    """
    Attributes:
        head: of classifiers, by its input size, number of labels and config; None if the family has
            none here.
        pooling: the mode that is assumed without sentence-transformers files; None if a model
            cannot work without them.
        is_decoder: whether models of this family may generate text instead.
    """

    body: Callable[[_Config], Any]
    head: Callable[[int, int, _Config], Module] | None
    renames: tuple[Rename, ...]
    pooling: str | None = "mean"
    is_decoder: bool = False


def _bert(config: _Config) -> BertBody:
    return BertBody(BertShape.from_dict(config))


def _modern_bert(config: _Config) -> ModernBertBody:
    return ModernBertBody(ModernBertShape.from_dict(config))


def _tanh_head(size: int, labels: int, config: _Config) -> Module:
    return FirstTokenHead(size, labels, mx.tanh)


def _relu_head(size: int, labels: int, config: _Config) -> Module:
    return FirstTokenHead(size, labels, relu)


_ROBERTA = Family(_bert, _tanh_head, ROBERTA_NAMES)
FAMILIES: Mapping[str, Family] = {
    "bert": Family(_bert, _tanh_head, BERT_NAMES),
    "camembert": _ROBERTA,
    "distilbert": Family(_bert, _relu_head, DISTILBERT_NAMES),
    "gemma3_text": Family(Gemma3Body, None, (), pooling=None, is_decoder=True),
    "modernbert": Family(_modern_bert, ModernBertHead, MODERN_BERT_NAMES),
    "qwen3": Family(Qwen3Body, None, (), pooling="lasttoken", is_decoder=True),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
"""By model_type."""


class TextNetwork(Module):
    """A body, and the head of a classifier.

    Attributes:
        labels: of the classifier; 0 without one.
    """

    def __init__(self, family: Family, config: _Config, kind: EmbeddingKind) -> None:
        super().__init__()
        self.body: Body = family.body(config)
        self.labels = label_count(config) if kind == "classification" else 0
        head = frozenset[str]()
        if kind == "classification":
            if family.head is None:
                raise ModelError(
                    f"a classifier of the model_type {config.get('model_type')!r:.80} is not "
                    "supported"
                )
            self.head = family.head(self.body.hidden_size, self.labels, config)
            head = part_names(self.head)
        self.names = WeightNames(family.renames, part_names(self.body), head)

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Called by mlx-lm with the weights of the files."""
        return self.names.rename(weights)

    def __call__(self, batch: TokenBatch) -> mx.array:
        """Return the hidden states: (rows, length, hidden_size), float32."""
        return self.body(batch).astype(mx.float32)

    def classify(self, batch: TokenBatch) -> mx.array:
        """Return the logits: (rows, labels), float32."""
        return cast(mx.array, self.head(self.body(batch), batch)).astype(mx.float32)


def find_family(config: _Config) -> Family:
    """Return the family of a config.

    Raises:
        ModelError: none of the supported ones.
    """
    model_type = config.get("model_type")
    if model_type is None:
        raise ModelError("model_type is missing, so the architecture is unknown")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(
            f"embedding models of the model_type {model_type!r:.80} are not supported; "
            f"{', '.join(sorted(FAMILIES))} are"
        )
    return FAMILIES[model_type]


def load_network(folder: Path, kind: EmbeddingKind) -> TextNetwork:
    """Load a network and its weights. On a CPU all weights but quantised ones become float32, which
    is faster there.

    Args:
        folder: the one of config.json and the weights.

    Raises:
        ModelError: says what is wrong with which file.
    """

    def build(config: dict[str, Any]) -> TextNetwork:
        with values_of(folder / "config.json"):
            return TextNetwork(find_family(config), config, kind)

    try:
        network, _ = load_model(
            folder, lazy=True, get_model_classes=lambda config: (build, _WholeConfig)
        )
        if not on_gpu():
            network.set_dtype(mx.float32)
        mx.eval(network.parameters())
    except (Exception, SystemExit) as error:  # third-party files can raise anything
        raise loading_error(error, folder, "network") from error
    return cast(TextNetwork, network)


class _WholeConfig:
    """What mlx-lm takes for a class of arguments."""

    @staticmethod
    def from_dict(config: dict[str, Any]) -> dict[str, Any]:
        return config
