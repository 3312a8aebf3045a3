"""Whether a model embeds texts, scores pairs, or generates text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.engine.embedding.modules_file import MODULES
from worker.engine.embedding.network import FAMILIES, EmbeddingKind
from worker.engine.embedding.prompts import SENTENCE_TRANSFORMERS

_CLASSIFIER = "ForSequenceClassification"
_BARE_BODY = "Model"
"""The end of the class name of a network without a head, which cannot generate text."""


def embedding_kind(folder: Path, config: Mapping[str, Any]) -> EmbeddingKind | None:
    """Return what a model is for; None if it generates text.

    A causal language model without sentence-transformers files counts as one that generates text,
    also if it was trained to embed: its files do not tell.

    Args:
        folder: the model's folder.
        config: the content of config.json.
    """
    named = config.get("architectures")
    listed = named if isinstance(named, list) else []
    architectures = [name for name in listed if isinstance(name, str)]
    if any(name.endswith(_CLASSIFIER) for name in architectures):
        return "classification"
    if (folder / MODULES).exists() or (folder / SENTENCE_TRANSFORMERS).exists():
        return "embedding"
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        return None
    has_body_only = bool(architectures) and architectures[0].endswith(_BARE_BODY)
    looks_back_and_forth = config.get("use_bidirectional_attention") is True
    return "embedding" if not family.is_decoder or has_body_only or looks_back_and_forth else None
