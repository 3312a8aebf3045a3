"""Names of weights: those of PyTorch's checkpoints to those of the networks here."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_PREFIX = re.compile(r"(bert|roberta|distilbert|model)\.")
"""Before the names of the body, if the checkpoint has a head as well."""
_BUFFERS = re.compile(r"\.(position_ids|token_type_ids|inv_freq)$")
"""Constants that older checkpoints contain."""

_OLD_NORMS = (
    (re.compile(r"(norm|LayerNorm)\.gamma$"), r"\1.weight"),
    (re.compile(r"(norm|LayerNorm)\.beta$"), r"\1.bias"),
)
"""Of checkpoints that were TensorFlow's."""
Rename = tuple[re.Pattern[str], str]


def renames(pairs: Mapping[str, str]) -> tuple[Rename, ...]:
    """Compile renames of the beginning of names, or of parts between dots."""
    return tuple(
        (re.compile(rf"(^|\.){re.escape(old)}(?=\.)"), rf"\g<1>{new}") for old, new in pairs.items()
    )


BERT_NAMES = renames(
    {
        "encoder.layer": "layers",
        "attention.self": "attention",
        "attention.query": "query",
        "attention.key": "key",
        "attention.value": "value",
        "attention.output.dense": "attention_output",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "intermediate",
        "output.dense": "output",
        "output.LayerNorm": "output_norm",
        "embeddings.LayerNorm": "embeddings.norm",
        "pooler.dense": "dense",
    }
)
ROBERTA_NAMES = (
    *BERT_NAMES,
    *renames({"classifier.dense": "dense", "classifier.out_proj": "classifier"}),
)
DISTILBERT_NAMES = renames(
    {
        "transformer.layer": "layers",
        "attention.q_lin": "query",
        "attention.k_lin": "key",
        "attention.v_lin": "value",
        "attention.out_lin": "attention_output",
        "sa_layer_norm": "attention_norm",
        "ffn.lin1": "intermediate",
        "ffn.lin2": "output",
        "output_layer_norm": "output_norm",
        "embeddings.LayerNorm": "embeddings.norm",
        "pre_classifier": "dense",
    }
)
MODERN_BERT_NAMES = renames({"head.dense": "dense", "head.norm": "norm"})


@dataclass(frozen=True, slots=True)
class WeightNames:
    """
    Attributes:
        body, head: names of the parts of the network's body and of its head.
    """

    renames: tuple[Rename, ...]
    body: frozenset[str]
    head: frozenset[str]

    def find(self, name: str) -> str | None:
        """Return the network's name of a weight; None if the network has no such part, as a head of
        another kind."""
        plain = _PREFIX.sub("", name, count=1) if _PREFIX.match(name) else name
        for pattern, new in (*_OLD_NORMS, *self.renames):
            plain = pattern.sub(new, plain)
        if _BUFFERS.search(plain):
            return None
        part = plain.partition(".")[0]
        if part in self.body:
            return f"body.{plain}"
        return f"head.{plain}" if part in self.head else None

    def rename(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights that the network has, by its names."""
        named = ((self.find(name), value) for name, value in weights.items())
        return {name: value for name, value in named if name is not None}


def part_names(module: Any) -> frozenset[str]:
    """Return the names of the parts of an MLX module."""
    children: Callable[[], Iterable[str]] = module.children
    return frozenset(children())
