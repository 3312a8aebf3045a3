"""Loads the tokenizer of a model; tolerates faults in its files that do not prevent serving."""

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
from worker.grammar.python_tokenizer import PythonTokenizerAdapter
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
        grammars: None if the tokenizer supports none; `no_grammars` is the reason.
        template_problem: why its chat template was ignored, if it was.
    """

    tokenizer: TokenizerWrapper
    end_ids: frozenset[int]
    vocabulary_size: int
    grammars: GrammarCompiler | None = None
    no_grammars: str = ""
    template_problem: str | None = None

    @property
    def decode(self) -> Decode:
        return _decoder(self._backend)

    @property
    def decode_copy(self) -> Decode:
        """A decoder with its own copy of the tokenizer, for another thread."""
        return _decoder(deepcopy(self._backend))

    @property
    def _backend(self) -> Any:
        return getattr(self.tokenizer, "backend_tokenizer", None) or self.tokenizer


def load_tokenizer(order: LoadModel, config: Mapping[str, Any]) -> ModelTokenizer:
    """Load the tokenizer of a model; takes about a second and does not use the device.

    Args:
        config: as mlx-lm loads it: its `eos_token_id` is that of `generation_config.json` if that
            file has one. The tokenizer's own end token counts in addition.

    Raises:
        ModelError: the tokenizer cannot be read, or an end token is outside the vocabulary.
    """
    folder = Path(order.path)
    extra: dict[str, Any] = {"trust_remote_code": True} if order.trust_remote_code else {}
    problem = _template_problem(folder)
    if problem is not None:
        extra["chat_template"] = None  # transformers would not load the tokenizer at all
    named = _named_end_ids(config)
    try:
        tokenizer = cast(TokenizerWrapper, _load_tokenizer(folder, extra, eos_token_ids=named))
    except Exception as error:  # third-party files can raise anything
        raise loading_error(error, folder, "tokenizer") from error
    vocabulary = vocabulary_size(config, tokenizer)
    end_ids = frozenset(token for token in tokenizer.eos_token_ids if token is not None)
    if not all(0 <= token < vocabulary for token in end_ids):
        raise ModelError(
            f"{order.path}: eos_token_id {sorted(end_ids)} is outside the vocabulary of "
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
    """Return the grammar compiler, or None and the reason: the model can still answer without."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    try:
        source = (
            backend.to_str()
            if backend is not None
            else PythonTokenizerAdapter(tokenizer._tokenizer)
        )
        return GrammarCompiler(source, vocabulary, list(end_ids)), ""
    except Exception as error:  # a tokenizer written in Python may raise anything
        is_described = isinstance(error, ValueError)
        problem = str(error) if is_described else f"{type(error).__name__}: {error}"
        _log.warning(
            "%s: tools, schemas and thinking budgets are disabled: its tokenizer: %s",
            order.path,
            problem,
        )
        return None, problem


def _named_end_ids(config: Mapping[str, Any]) -> list[int] | None:
    """Return the end tokens in the config; None if it has none."""
    named = config.get("eos_token_id")
    if named is None:
        return None
    found = list(named) if isinstance(named, list | tuple) else [named]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in found):
        raise ModelError(
            f"eos_token_id is {named!r:.80}, which is not a token id or a list of them"
        )
    return found


def _template_problem(folder: Path) -> str | None:
    """Return why transformers cannot read the list of named templates in the tokenizer's config."""
    if (folder / _TEMPLATE_FILE).exists() or any((folder / _TEMPLATE_FOLDER).glob("*.jinja")):
        return None  # these files take precedence
    try:
        config = json.loads((folder / _CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # loading the tokenizer reports it in more detail
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
            return (
                f"chat_template in {_CONFIG} has a name that is not a string: {entry['name']!r:.80}"
            )
    return None


def _decoder(tokenizer: Any) -> Decode:
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))
