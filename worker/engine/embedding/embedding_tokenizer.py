"""The tokenizer of an embedding model or classifier."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from worker.engine.embedding.config_values import boolean, optional_positive_int, values_of
from worker.engine.load_errors import loading_error
from worker.models.file_reading import read_object

_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_xlm-roberta_config.json",
)
"""Names of the file that sentence-transformers tries."""
_MAX_BYTES = 1_000_000
_MAX_TOKENIZER_TOKENS = 100_000_000
"""Tokenizers without a limit have 10^30 or similar values."""


@dataclass(frozen=True, slots=True)
class TokenizedPair:
    """
    Attributes:
        ids: of both texts, with the model's special tokens.
        second_from: the position from which on token types are 1; `len(ids)` if the model has no
            token types.
    """

    ids: list[int]
    second_from: int


class EmbeddingTokenizer:
    """Belongs to one thread at a time: the library's tokenizers fail if two threads use one.

    Attributes:
        max_tokens: of an input; None if the files do not limit it.
    """

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer of a folder, without running code of the folder.

        Raises:
            ModelError: a file is missing or broken.
        """
        settings = _settings(folder)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # third-party files can raise anything
            raise loading_error(error, folder, "tokenizer") from error
        self._lowers = settings.lowers
        self._has_types = "token_type_ids" in self._tokenizer.model_input_names
        limit = getattr(self._tokenizer, "model_max_length", None)
        is_limit = isinstance(limit, int) and 1 < limit <= _MAX_TOKENIZER_TOKENS
        self.max_tokens: int | None = settings.max_tokens or (limit if is_limit else None)

    def tokenize(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Return the tokens of a text with the special tokens around it; at most `max_tokens`, if
        given."""
        return list(self._encode(text, max_tokens=max_tokens)["input_ids"])

    def tokenize_pair(
        self, first: str, second: str, max_tokens: int | None = None
    ) -> TokenizedPair:
        """Return the tokens of a pair with the special tokens around them; at most `max_tokens`, if
        given: the second text is cut, which must leave one token of it."""
        encoded = self._encode(first, second, max_tokens=max_tokens)
        ids = list(encoded["input_ids"])
        types = list(encoded.get("token_type_ids") or [])
        return TokenizedPair(ids, types.index(1) if 1 in types else len(ids))

    def count_first_tokens(self, first: str) -> int:
        """Return how many tokens a pair has besides those of its second text."""
        lowered = first.lower() if self._lowers else first
        own = self._tokenizer(lowered, add_special_tokens=False, truncation=False, verbose=False)
        return len(own["input_ids"]) + int(self._tokenizer.num_special_tokens_to_add(pair=True))

    def count_prompt_tokens(self, prompt: str) -> int:
        """Return how many tokens at the beginning of an input are the prompt's, counted as
        sentence-transformers does: those of the prompt alone but for a special token at its end."""
        ids = self.tokenize(prompt)
        ends_special = bool(ids) and ids[-1] in self._tokenizer.all_special_ids
        return len(ids) - ends_special

    def _encode(self, *parts: str, max_tokens: int | None = None) -> Mapping[str, Any]:
        parts = tuple(part.lower() for part in parts) if self._lowers else parts
        encoded: Mapping[str, Any] = self._tokenizer(
            *parts,
            add_special_tokens=True,
            padding=False,
            truncation=max_tokens is not None and ("only_first", "only_second")[len(parts) - 1],
            max_length=max_tokens,
            return_token_type_ids=self._has_types,
            verbose=False,  # no warning about long inputs, which the caller sees
        )
        return encoded


@dataclass(frozen=True, slots=True)
class _Settings:
    max_tokens: int | None = None
    lowers: bool = False


def _settings(folder: Path) -> _Settings:
    for path in (folder / name for name in _SETTINGS):
        if path.exists():
            config = read_object(path, max_bytes=_MAX_BYTES)
            with values_of(path):
                return _Settings(
                    optional_positive_int(config, "max_seq_length"),
                    boolean(config, "do_lower_case", False),
                )
    return _Settings()
