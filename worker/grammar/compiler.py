"""Grammars for one model's tokenizer."""

import json
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.errors import InvalidRequest
from worker.grammar.bounds import excess
from worker.grammar.matcher import Matcher, MatcherPool
from worker.grammar.python_tokenizer import PythonTokenizer
from worker.grammar.references import pointer
from worker.grammar.schemas import cleaned, moved, steps, subschemas, with_options
from worker.grammar.vocabulary import without_markers

_LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=150_000,  # 2 to 4 ms
    step_max_items=50_000,  # about 2.5 ms
    max_items_in_row=2000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
_KEPT_PROBLEMS = 4096
_MOST_TRIES = 500
_LONGEST_SEARCH_S = 1.0
_NO_TOKEN = "nothing can satisfy it"
_NO_EXTENSION = "NoExtension"
_ROOT = "/$defs/root"
_WORDS = {
    "<non-verbose/>": "",
    "json-schema:///": "",
    _ROOT: "",
    "Unimplemented keys": "keywords that are not enforced",
    "Unknown format": "a format that is not enforced",
}
_SENTENCES = {
    "oneOf constraints are not supported": (
        "oneOf: only enforced where no value can match two of them; use anyOf"
    ),
    "unknown special token": "tokens that are no text cannot be named",
    "too many expressions constructed": "it is too complex",
    "fuel exhausted": "it is too complex",
    "Too many items": "it is too complex",
    "Unable to determine if regex is empty": (
        "patterns and lengths that are too complex to be enforced together"
    ),
    "lookarounds not supported": "a regular expression with \\b or look-around is not enforced",
    "look-around": "a regular expression with look-around is not enforced",
}
"""What to say for what llguidance says."""

_BYTES = frozenset({0x0A, *range(0x20, 0x7F), *range(0x80, 0xC0)})
"""What a vocabulary must have: ASCII, and what other characters of UTF-8 go on with. Else a grammar
would let a model begin what it cannot end. Without some byte that they begin with, as SmolLM2's is,
it only lacks characters."""

Grammar = str
"""As llguidance takes it: JSON with a list of grammars."""


class GrammarCompiler:
    """Belongs to the thread that prepares prompts.

    Args:
        tokenizer: as JSON, in the form of Hugging Face's `tokenizers`, or a program.
        vocabulary_size: of the model's logits: ids beyond the tokenizer are never allowed. Where
            the tokenizer has more, the model can never write them.
        end_ids: tokens that end an answer, wherever a grammar allows an end.

    Raises:
        ValueError: the tokenizer is of a kind that llguidance does not know, or cannot write every
            text.
    """

    def __init__(
        self, tokenizer: str | PythonTokenizer, vocabulary_size: int, end_ids: Iterable[int]
    ) -> None:
        if isinstance(tokenizer, str):
            described, highest = without_markers(json.loads(tokenizer))
            known: Any = json.dumps(described)
        else:
            known, highest = tokenizer, len(tokenizer.tokens) - 1
        self.tokenizer = LLTokenizer(
            known, n_vocab=max(vocabulary_size, highest + 1), eos_token=sorted(end_ids)
        )
        if missing := sorted(_BYTES - self._single_bytes()):
            raise ValueError(f"its vocabulary has no token for the byte 0x{missing[0]:02X}")
        self._pool = MatcherPool(self._of_use)
        self._problems: OrderedDict[Grammar, str | None] = OrderedDict()

    def token_bytes(self, token_id: int) -> bytes:
        """What a token is in UTF-8, also where that is a part of a character. For any thread."""
        return bytes(self.tokenizer.decode_bytes([token_id]))

    def _single_bytes(self) -> set[int]:
        """Those that are a token of their own."""
        tokens = (self.token_bytes(number) for number in range(self.tokenizer.vocab_size))
        return {token[0] for token in tokens if len(token) == 1}

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
        if (found := excess(clean)) is not None:
            path, problem = found
        elif (said := self._compiling_problem(clean)) is not None:
            path, problem = self._place(clean, said)
        else:
            return
        where = ".".join([param, *path])
        raise InvalidRequest(f"{where}: {problem}", param=where)

    def problem(self, schema: Any, *, lenient: bool = False) -> str | None:
        """What of a clean schema cannot be enforced; None where all can, or, if `lenient`, what
        can be is of use."""
        if (found := excess(schema, lenient=lenient)) is not None:
            path, problem = found
            return f"{'.'.join(path)}: {problem}" if path else problem
        return self._compiling_problem(schema, lenient=lenient)

    def _compiling_problem(self, schema: Any, *, lenient: bool = False) -> str | None:
        options = with_options(schema, lenient=lenient)
        grammar = json.dumps({"grammars": [{"json_schema": options}]})
        if grammar not in self._problems:
            try:
                self._problems[grammar] = _problem(self._compiled(grammar))
            except ValueError as error:
                self._problems[grammar] = str(error)
            if len(self._problems) > _KEPT_PROBLEMS:
                self._problems.popitem(last=False)
        return self._problems[grammar]

    def _of_use(self, grammar: Grammar) -> LLMatcher:
        """Compiled; raises ValueError where no answer could begin."""
        compiled = self._compiled(grammar)
        if (problem := _problem(compiled)) is not None:
            raise ValueError(problem)
        return compiled

    def _compiled(self, grammar: Grammar) -> LLMatcher:
        try:
            return LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS)
        except Exception:
            raise
        except BaseException as error:  # a panic of llguidance is no `Exception`
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"it cannot be compiled: {error}") from None

    def _place(self, root: Any, problem: str) -> tuple[list[str], str]:
        """The path to the innermost schema that has a problem, and its problem. Each is tried
        where it stands, as its references may lead anywhere."""
        whole = {"$defs": {"root": moved(root, f"#{_ROOT}")}}
        path: list[str] = []
        keys: list[str] = []
        schema = root
        tries = 0
        until = time.monotonic() + _LONGEST_SEARCH_S
        while True:
            for step, inner in subschemas(schema):
                tries += 1
                if tries > _MOST_TRIES or time.monotonic() > until:
                    return path, problem
                here = [*keys, *steps(schema, step)]
                tried = {**whole, "$ref": f"#{_ROOT}{pointer(here)[1:]}"}
                if (found := self._compiling_problem(tried)) is not None:
                    path.append(step)
                    keys, schema, problem = here, inner, found
                    break
            else:
                return path, problem


def _problem(matcher: LLMatcher) -> str | None:
    """Why a new matcher is of no use; None where it is."""
    if matcher.is_error():
        return _sentence(matcher.get_error())
    allowed = matcher.compute_bitmask()
    if matcher.is_error():
        said = _sentence(matcher.get_error())
        return _NO_TOKEN if _NO_EXTENSION in said else said
    word = next((word for word, bits in enumerate(allowed) if bits), None)
    if word is None:
        return _NO_TOKEN
    first = 8 * word + (allowed[word] & -allowed[word]).bit_length() - 1
    tried = matcher.deep_copy()
    return None if tried.consume_token(first) else _sentence(tried.get_error())


def _sentence(error: str) -> str:
    """What llguidance says, in one line."""
    for said, sentence in _SENTENCES.items():
        if said in error:
            return sentence
    for said, words in _WORDS.items():
        error = error.replace(said, words)
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return " ".join(lines)[:300]
