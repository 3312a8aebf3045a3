"""Prompts of an embedding model: texts before the input, by the kind of input.

The format is that of sentence-transformers: config_sentence_transformers.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import InvalidRequest, ModelError
from worker.engine.embedding.config_values import optional_positive_int, string, values_of
from worker.models.file_reading import read_object

SENTENCE_TRANSFORMERS = "config_sentence_transformers.json"
_MAX_BYTES = 1_000_000
_DOCUMENT_NAMES = ("document", "passage", "corpus")


@dataclass(frozen=True, slots=True)
class Prompts:
    """
    Attributes:
        by_name: the text of each prompt.
        default_name: the prompt of inputs for which none is named.
        dimensions: to which vectors are cut by default (`truncate_dim`).
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    default_name: str | None = None
    dimensions: int | None = None

    @property
    def for_query(self) -> str | None:
        """The name of the prompt of queries, as `encode_query` finds it; None for the default."""
        return "query" if "query" in self.by_name else None

    @property
    def for_document(self) -> str | None:
        """The name of the prompt of documents, as `encode_document` finds it; None for the
        default."""
        return next((name for name in _DOCUMENT_NAMES if name in self.by_name), None)

    def find(self, name: str | None) -> str:
        """Return the text of a prompt; empty for None without a default.

        Raises:
            InvalidRequest: the model has no such prompt.
        """
        name = self.default_name if name is None else name
        if name is None:
            return ""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise InvalidRequest(
                f"the model has no prompt {name[:80]!r}; it has {known}", param="prompt_name"
            )
        return self.by_name[name]


def load_prompts(folder: Path) -> Prompts:
    """Load the prompts of a model; none without the file.

    Raises:
        ModelError: the file is broken.
    """
    path = folder / SENTENCE_TRANSFORMERS
    if not path.exists():
        return Prompts()
    config = read_object(path, max_bytes=_MAX_BYTES)
    with values_of(path):
        by_name = config.get("prompts") or {}
        if not isinstance(by_name, dict) or not all(
            isinstance(text, str) for text in by_name.values()
        ):
            raise ModelError("prompts is not an object of texts")
        default = string(config, "default_prompt_name", "") or None
        if default is not None and default not in by_name:
            raise ModelError(f"default_prompt_name {default[:80]!r} is not one of its prompts")
        dimensions = optional_positive_int(config, "truncate_dim")
    return Prompts(by_name, default, dimensions)
