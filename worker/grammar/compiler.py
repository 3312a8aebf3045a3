"""Grammars for one model's tokenizer."""

import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.errors import InvalidRequest
from worker.grammar.schemas import cleaned, subschemas, with_options

_LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=60_000,  # about 4 ms
    step_max_items=50_000,  # about 2.5 ms
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
_KEPT = 256
_MOST_TRIES = 500
_NO_TOKEN = "nothing can satisfy it"

Grammar = str
"""As llguidance takes it: JSON with a list of grammars."""


class GrammarCompiler:
    """Belongs to the thread that prepares prompts.

    Args:
        tokenizer: as JSON, in the form of Hugging Face's `tokenizers`.
        vocabulary_size: of the model's logits: ids beyond the tokenizer are never allowed.
        end_ids: tokens that end an answer, wherever a grammar allows an end.
    """

    def __init__(self, tokenizer: str, vocabulary_size: int, end_ids: Iterable[int]) -> None:
        self.tokenizer = LLTokenizer(tokenizer, n_vocab=vocabulary_size, eos_token=sorted(end_ids))
        self._known: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A matcher of one's own, at the beginning.

        Raises:
            ValueError: the grammar is none, or too large, or allows nothing.
        """
        known = self._known.get(grammar)
        if known is None:
            known = LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS)
            if (problem := _problem(known)) is not None:
                raise ValueError(problem)
            self._known[grammar] = known
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(grammar)
        return known.deep_copy()

    def check_schema(self, schema: Any, param: str) -> None:
        """Refuse a schema that cannot be enforced whole.

        Raises:
            InvalidRequest: names the place in it.
        """
        clean = cleaned(schema)
        if (problem := self._problem(clean)) is not None:
            path, problem = self._place(clean, problem)
            where = ".".join([param, *path])
            raise InvalidRequest(f"{where}: {problem}", param=where)

    def dropped(self, schema: Any) -> str | None:
        """What of a clean schema cannot be enforced; None where all can."""
        return self._problem(schema)

    def _problem(self, schema: Any) -> str | None:
        grammar = json.dumps({"grammars": [{"json_schema": with_options(schema)}]})
        return _problem(LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS))

    def _place(self, schema: Any, problem: str) -> tuple[list[str], str]:
        """The path to the innermost schema that has a problem, and its problem."""
        shared = {
            key: schema[key]
            for key in ("$defs", "definitions")
            if isinstance(schema, dict) and key in schema
        }
        path: list[str] = []
        tries = 0
        while True:
            for step, inner in subschemas(schema):
                tries += 1
                if tries > _MOST_TRIES:
                    return path, problem
                whole = {**shared, **inner} if isinstance(inner, dict) else inner
                if (found := self._problem(whole)) is not None:
                    path.append(step)
                    schema, problem = inner, found
                    break
            else:
                return path, problem


def _problem(matcher: LLMatcher) -> str | None:
    """Why a new matcher is of no use; None where it is."""
    if matcher.is_error():
        return _sentence(matcher.get_error())
    allows = any(matcher.compute_bitmask())
    if matcher.is_error():
        return f"{_NO_TOKEN} ({_sentence(matcher.get_error())})"
    return None if allows else _NO_TOKEN


def _sentence(error: str) -> str:
    """What llguidance says, in one line."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return " ".join(lines)[:300]
