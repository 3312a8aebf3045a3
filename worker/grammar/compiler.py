"""Compiles grammars for one model's tokenizer."""

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.errors import InvalidRequest
from worker.grammar.bounds import find_excess
from worker.grammar.matcher import Matcher, MatcherPool
from worker.grammar.python_tokenizer import PythonTokenizerAdapter
from worker.grammar.references import pointer
from worker.grammar.schemas import cleaned, rebased, steps, subschemas, with_options
from worker.grammar.vocabulary import without_special_text

_LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=150_000,  # 2 to 4 ms
    step_max_items=50_000,  # about 2.5 ms
    max_items_in_row=2000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
_MAX_CACHED_PROBLEMS = 4096
_MAX_ATTEMPTS = 500
_MAX_SEARCH_S = 1.0
_NO_TOKEN = "nothing can satisfy it"
_NO_EXTENSION = "NoExtension"
_ROOT = "/$defs/root"
_REPLACEMENTS = {
    "<non-verbose/>": "",
    "json-schema:///": "",
    _ROOT: "",
    "Unimplemented keys": "keywords that are not enforced",
    "Unknown format": "a format that is not enforced",
}
_MESSAGES = {
    "oneOf constraints are not supported": (
        "oneOf: only enforced where no value can match two of them; use anyOf"
    ),
    "unknown special token": "tokens that are not text cannot be named",
    "too many expressions constructed": "it is too complex",
    "fuel exhausted": "it is too complex",
    "Too many items": "it is too complex",
    "Unable to determine if regex is empty": (
        "patterns and lengths that are too complex to be enforced together"
    ),
    "lookarounds not supported": "a regular expression with \\b or look-around is not enforced",
    "look-around": "a regular expression with look-around is not enforced",
}
"""Error messages by a part of llguidance's message."""

_REQUIRED_BYTES = frozenset({0x0A, *range(0x20, 0x7F), *range(0x80, 0xC0)})
"""Bytes that must be tokens of a vocabulary: ASCII and UTF-8's continuation bytes. Without them a
grammar would allow the beginning of a text that the model cannot complete. A missing lead byte, as
in SmolLM2's vocabulary, only makes some characters impossible."""

Grammar = str
"""llguidance's format: JSON with a list of grammars."""


class GrammarCompiler:
    """Compiles grammars and checks schemas. Used by the thread that prepares prompts.

    Args:
        tokenizer: JSON of Hugging Face's `tokenizers`, or a tokenizer written in Python.
        vocabulary_size: width of the model's logits. Ids beyond the tokenizer are never allowed;
            ids beyond the logits are never generated.
        end_ids: tokens that end an answer, wherever a grammar allows the end.

    Raises:
        ValueError: llguidance does not support the tokenizer, or the vocabulary cannot write every
            text.
    """

    def __init__(
        self, tokenizer: str | PythonTokenizerAdapter, vocabulary_size: int, end_ids: Iterable[int]
    ) -> None:
        if isinstance(tokenizer, str):
            described, highest = without_special_text(json.loads(tokenizer))
            known: Any = json.dumps(described)
        else:
            known, highest = tokenizer, len(tokenizer.tokens) - 1
        self.tokenizer = LLTokenizer(
            known, n_vocab=max(vocabulary_size, highest + 1), eos_token=sorted(end_ids)
        )
        if missing := sorted(_REQUIRED_BYTES - self._single_bytes()):
            raise ValueError(f"its vocabulary has no token for the byte 0x{missing[0]:02X}")
        self._pool = MatcherPool(self._compile_usable)
        self._problems: OrderedDict[Grammar, str | None] = OrderedDict()

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes of UTF-8, which may be part of a character. Thread-safe."""
        return bytes(self.tokenizer.decode_bytes([token_id]))

    def _single_bytes(self) -> set[int]:
        """Return the bytes that are a token of their own."""
        tokens = (self.token_bytes(number) for number in range(self.tokenizer.vocab_size))
        return {token[0] for token in tokens if len(token) == 1}

    def matcher(self, grammar: Grammar) -> Matcher:
        """Return a matcher for one answer, at the beginning of a grammar.

        Raises:
            ValueError: the grammar is invalid, too large, or allows no answer.
        """
        return self._pool.matcher(grammar)

    def check_schema(
        self, schema: Any, param: str, pause: Callable[[], None] = lambda: None
    ) -> None:
        """Check that every keyword of a schema can be enforced.

        Args:
            pause: called now and then while the problem of a large schema is located.

        Raises:
            InvalidRequest: names the keyword's path in the request.
        """
        clean = cleaned(schema)
        if (found := find_excess(clean)) is not None:
            path, problem = found
        elif (message := self._compile_problem(clean)) is not None:
            path, problem = self._locate(clean, message, pause)
        else:
            return
        where = ".".join([param, *path])
        raise InvalidRequest(f"{where}: {problem}", param=where)

    def problem(self, schema: Any, *, lenient: bool = False) -> str | None:
        """Return why a cleaned schema cannot be enforced completely; None if it can. With
        `lenient`, only why no answer at all is possible or the cost is too high."""
        if (found := find_excess(schema, lenient=lenient)) is not None:
            path, problem = found
            return f"{'.'.join(path)}: {problem}" if path else problem
        return self._compile_problem(schema, lenient=lenient)

    def _compile_problem(self, schema: Any, *, lenient: bool = False) -> str | None:
        options = with_options(schema, lenient=lenient)
        grammar = json.dumps({"grammars": [{"json_schema": options}]})
        if grammar not in self._problems:
            try:
                self._problems[grammar] = _problem(self._compile(grammar))
            except ValueError as error:
                self._problems[grammar] = str(error)
            if len(self._problems) > _MAX_CACHED_PROBLEMS:
                self._problems.popitem(last=False)
        return self._problems[grammar]

    def _compile_usable(self, grammar: Grammar) -> LLMatcher:
        """Compile a grammar; raises ValueError if no answer could begin."""
        compiled = self._compile(grammar)
        if (problem := _problem(compiled)) is not None:
            raise ValueError(problem)
        return compiled

    def _compile(self, grammar: Grammar) -> LLMatcher:
        try:
            return LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS)
        except Exception:
            raise
        except BaseException as error:  # a panic of llguidance is not an `Exception`
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"it cannot be compiled: {error}") from None

    def _locate(self, root: Any, problem: str, pause: Callable[[], None]) -> tuple[list[str], str]:
        """Return the path of the innermost schema that has a problem, and the problem. Subschemas
        are compiled in their place in the root, as their references may lead anywhere."""
        whole = {"$defs": {"root": rebased(root, f"#{_ROOT}")}}
        path: list[str] = []
        keys: list[str] = []
        schema = root
        tries = 0
        until = time.monotonic() + _MAX_SEARCH_S
        while True:
            for step, inner in subschemas(schema):
                tries += 1
                if tries > _MAX_ATTEMPTS or time.monotonic() > until:
                    return path, problem
                pause()
                here = [*keys, *steps(schema, step)]
                tried = {**whole, "$ref": f"#{_ROOT}{pointer(here)[1:]}"}
                if (found := self._compile_problem(tried)) is not None:
                    path.append(step)
                    keys, schema, problem = here, inner, found
                    break
            else:
                return path, problem


def _problem(matcher: LLMatcher) -> str | None:
    """Return why a new matcher allows no answer; None if it allows one."""
    if matcher.is_error():
        return _message(matcher.get_error())
    allowed = matcher.compute_bitmask()
    if matcher.is_error():
        message = _message(matcher.get_error())
        return _NO_TOKEN if _NO_EXTENSION in message else message
    word = next((word for word, bits in enumerate(allowed) if bits), None)
    if word is None:
        return _NO_TOKEN
    first = 8 * word + (allowed[word] & -allowed[word]).bit_length() - 1
    tried = matcher.deep_copy()
    return None if tried.consume_token(first) else _message(tried.get_error())


def _message(error: str) -> str:
    """Return llguidance's error message in one line."""
    for part, message in _MESSAGES.items():
        if part in error:
            return message
    for part, replacement in _REPLACEMENTS.items():
        error = error.replace(part, replacement)
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return " ".join(lines)[:300]
