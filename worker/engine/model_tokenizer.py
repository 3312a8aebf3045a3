"""The tokenizer of a model, with what of its files is wrong in ways that need not end a load."""

import json
import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer as _load_tokenizer

from shared.errors import ModelError
from worker.answer.text import Decode
from worker.engine.load_errors import loading_error
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.python_tokenizer import PythonTokenizer
from worker.link.orders import LoadModel

_log = logging.getLogger(__name__)

_CONFIG = "tokenizer_config.json"
_TEMPLATE_FILE = "chat_template.jinja"
_TEMPLATE_FOLDER = "additional_chat_templates"


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """
    Attributes:
        end_ids: the tokens that end an answer.
        vocabulary_size: of the model, which may be larger than the tokenizer's.
        grammars: None where the tokenizer does not allow any, and why in `no_grammars`.
        template_problem: why its chat template was left out, if it was.
    """

    tokenizer: TokenizerWrapper
    end_ids: frozenset[int]
    vocabulary_size: int
    grammars: GrammarCompiler | None = None
    no_grammars: str = ""
    template_problem: str | None = None

    @property
    def decode(self) -> Decode:
        return _decoder(self._decoding)

    @property
    def decode_copy(self) -> Decode:
        """Of a tokenizer of its own, for another thread."""
        return _decoder(deepcopy(self._decoding))

    @property
    def _decoding(self) -> Any:
        return getattr(self.tokenizer, "backend_tokenizer", None) or self.tokenizer


def load_tokenizer(order: LoadModel, config: Mapping[str, Any]) -> ModelTokenizer:
    """Load what lies beside a model; takes a second, and needs no device.

    Args:
        config: as mlx-lm loads it: its `eos_token_id` is that of `generation_config.json` where
            that names one. The tokenizer's own end token counts besides.

    Raises:
        ModelError: it cannot be read, or the end tokens are none of its vocabulary.
    """
    folder = Path(order.path)
    extra: dict[str, Any] = {"trust_remote_code": True} if order.trust_remote_code else {}
    problem = _template_problem(folder)
    if problem is not None:
        extra["chat_template"] = None  # transformers would not load the tokenizer at all
    named = _named_end_ids(config)
    try:
        tokenizer = cast(TokenizerWrapper, _load_tokenizer(folder, extra, eos_token_ids=named))
    except Exception as error:  # its files may hold anything
        raise loading_error(error, folder, "tokenizer") from error
    vocabulary = vocabulary_size(config, tokenizer)
    end_ids = frozenset(token for token in tokenizer.eos_token_ids if token is not None)
    if not all(0 <= token < vocabulary for token in end_ids):
        raise ModelError(
            f"{order.path}: eos_token_id {sorted(end_ids)} lies outside the vocabulary of "
            f"{vocabulary} tokens"
        )
    grammars, no_grammars = _grammars(order, tokenizer, vocabulary, end_ids)
    return ModelTokenizer(tokenizer, end_ids, vocabulary, grammars, no_grammars, problem)


def vocabulary_size(config: Mapping[str, Any], tokenizer: TokenizerWrapper) -> int:
    named = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return int(named or len(tokenizer))


def _grammars(
    order: LoadModel, tokenizer: TokenizerWrapper, vocabulary: int, end_ids: frozenset[int]
) -> tuple[GrammarCompiler | None, str]:
    """None, and why, where there can be none: it can still answer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    try:
        known = backend.to_str() if backend is not None else PythonTokenizer(tokenizer._tokenizer)
        return GrammarCompiler(known, vocabulary, list(end_ids)), ""
    except Exception as error:  # a tokenizer that is a program may raise anything
        is_told = isinstance(error, ValueError)
        problem = str(error) if is_told else f"{type(error).__name__}: {error}"
        _log.warning("%s: no tools, schemas or budgets: its tokenizer: %s", order.path, problem)
        return None, problem


def _named_end_ids(config: Mapping[str, Any]) -> list[int] | None:
    """The end tokens that the config names: one, several, or none."""
    named = config.get("eos_token_id")
    if named is None:
        return None
    found = list(named) if isinstance(named, list | tuple) else [named]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in found):
        raise ModelError(f"eos_token_id is {named!r:.80}, which is no token id, nor a list of them")
    return found


def _template_problem(folder: Path) -> str | None:
    """Why transformers could not read the list of named templates in the tokenizer's config."""
    if (folder / _TEMPLATE_FILE).exists() or any((folder / _TEMPLATE_FOLDER).glob("*.jinja")):
        return None  # these count instead
    try:
        config = json.loads((folder / _CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # what loads the tokenizer says more of it
    named = config.get("chat_template") if isinstance(config, dict) else None
    if not isinstance(named, list):
        return None
    for entry in named:
        if not isinstance(entry, dict) or not {"name", "template"} <= entry.keys():
            return (
                f"chat_template in {_CONFIG} is a list, but not of objects with a name and a "
                f"template each: {entry!r:.80}"
            )
        if not isinstance(entry["name"], str):
            return f"chat_template in {_CONFIG} has a name that is no text: {entry['name']!r:.80}"
    return None


def _decoder(tokenizer: Any) -> Decode:
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))
