"""Grammars for one model's tokenizer."""

import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.errors import InvalidRequest
from worker.grammar.matcher import Matcher, MatcherPool
from worker.grammar.schemas import cleaned, subschemas, with_options

_LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=60_000,  # about 4 ms
    step_max_items=50_000,  # about 2.5 ms
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
_KEPT_PROBLEMS = 4096
_MOST_TRIES = 500
_NO_TOKEN = "nothing can satisfy it"

Grammar = str
"""As llguidance takes it: JSON with a list of grammars."""


class GrammarCompiler:
    """Belongs to the thread that prepares prompts.

    Args:
        tokenizer: as JSON, in the form of Hugging Face's `tokenizers`.
        vocabulary_size: of the model's logits: ids beyond the tokenizer are never allowed. Where
            the tokenizer has more, the model can never write them.
        end_ids: tokens that end an answer, wherever a grammar allows an end.

    Raises:
        ValueError: the tokenizer is of a kind that llguidance does not know.
    """

    def __init__(self, tokenizer: str, vocabulary_size: int, end_ids: Iterable[int]) -> None:
        described = _with_plain_tokens(json.loads(tokenizer))
        self.tokenizer = LLTokenizer(
            json.dumps(described),
            n_vocab=max(vocabulary_size, _highest_id(described) + 1),
            eos_token=sorted(end_ids),
        )
        self._pool = MatcherPool(self._compiled)
        self._problems: OrderedDict[Grammar, str | None] = OrderedDict()

    def matcher(self, grammar: Grammar) -> Matcher:
        """For one answer, at the beginning of a grammar.

        Raises:
            ValueError: the grammar is none, or too large, or allows nothing.
        """
        return self._pool.matcher(grammar)

    def check_schema(self, schema: Any, param: str) -> None:
        """Refuse a schema that cannot be enforced whole.

        Raises:
            InvalidRequest: names the place in it.
        """
        clean = cleaned(schema)
        if (problem := self.problem(clean)) is not None:
            path, problem = self._place(clean, problem)
            where = ".".join([param, *path])
            raise InvalidRequest(f"{where}: {problem}", param=where)

    def problem(self, schema: Any, *, lenient: bool = False) -> str | None:
        """What of a clean schema cannot be enforced; None where all can, or, if `lenient`, what
        can be is of use."""
        options = with_options(schema, lenient=lenient)
        grammar = json.dumps({"grammars": [{"json_schema": options}]})
        if grammar not in self._problems:
            matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS)
            self._problems[grammar] = _problem(matcher)
            if len(self._problems) > _KEPT_PROBLEMS:
                self._problems.popitem(last=False)
        return self._problems[grammar]

    def _compiled(self, grammar: Grammar) -> LLMatcher:
        compiled = LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS)
        if (problem := _problem(compiled)) is not None:
            raise ValueError(problem)
        return compiled

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
                if (found := self.problem(whole)) is not None:
                    path.append(step)
                    schema, problem = inner, found
                    break
            else:
                return path, problem


def _with_plain_tokens(described: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer whose added tokens are ordinary ones unless they are special. llguidance takes
    all of them for special, and lets none stand in a text; but a string may hold `</tool_call>`."""
    vocabulary = described["model"].get("vocab")
    if isinstance(vocabulary, dict):
        plain = [token for token in described["added_tokens"] if not token["special"]]
        vocabulary.update({token["content"]: token["id"] for token in plain})
        described["added_tokens"] = [
            token for token in described["added_tokens"] if token["special"]
        ]
    return described


def _highest_id(described: dict[str, Any]) -> int:
    vocabulary = described["model"].get("vocab") or []
    ids = vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    return max([*ids, *(token["id"] for token in described["added_tokens"])], default=-1)


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
