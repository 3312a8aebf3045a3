"""Matchers of grammars: what one answer does in a grammar is nothing to another one."""

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask
from tokenizers import Tokenizer

from worker.grammar import matcher as module
from worker.grammar.matcher import Matcher, MatcherPool

LETTERS = LLMatcher.grammar_from_regex("a{900}|b{900}|c{900}")


class Compiling:
    """A pool whose lexers may have few states, and what it has compiled."""

    def __init__(self, folder: Path) -> None:
        path = str(folder / "tokenizer.json")
        tokenizer = Tokenizer.from_file(path)
        self._letters = {
            client_message: tokenizer.encode(client_message).ids[0] for client_message in "abc"
        }
        self._tokenizer = LLTokenizer(Path(path).read_text())
        self._bitmask = allocate_token_bitmask(1, self._tokenizer.vocab_size)
        self.compiled: list[str] = []
        self.pool = MatcherPool(self._compile)

    def _compile(self, grammar: str) -> LLMatcher:
        self.compiled.append(grammar)
        limits = LLParserLimits(max_lexer_states=1000)
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)

    def goes(self, matcher: Matcher, client_message: str, count: int) -> bool:
        """Whether an answer may go on with a letter so many times."""
        return all(
            matcher.fill(self._bitmask, 0) and matcher.consume(self._letters[client_message])
            for _ in range(count)
        )


@pytest.fixture
def compiling(demo_folder: Path) -> Compiling:
    return Compiling(demo_folder)


def test_answers_at_the_same_time_share_no_limit(compiling: Compiling) -> None:
    """Together they see more states than a lexer may have."""
    matchers = [compiling.pool.matcher(LETTERS) for _ in "abc"]
    assert all(
        compiling.goes(each, client_message, 600)
        for each, client_message in zip(matchers, "abc", strict=True)
    )
    assert all(each.error is None for each in matchers)


def test_one_after_another_uses_what_was_compiled(compiling: Compiling) -> None:
    for _ in range(10):
        assert compiling.goes(compiling.pool.matcher(LETTERS), "a", 100)
    assert len(compiling.compiled) == 1


def test_a_lexer_begins_anew_after_some_answers(compiling: Compiling) -> None:
    for _ in range(module._MAX_USES + 1):
        compiling.pool.matcher(LETTERS)
    assert len(compiling.compiled) == 2


def test_after_a_bad_end_nobody_goes_on_there(compiling: Compiling) -> None:
    bad = compiling.pool.matcher(LETTERS)
    assert compiling.goes(bad, "a", 600)
    rest = bad.copy()
    assert not compiling.goes(bad, "b", 1), "it is not allowed there"
    assert bad.error is not None
    del bad, rest
    assert compiling.goes(compiling.pool.matcher(LETTERS), "b", 600)
    assert len(compiling.compiled) == 2


def test_a_limit_that_is_reached_is_an_error_of_that_answer(compiling: Compiling) -> None:
    two_letters = LLMatcher.grammar_from_regex("(a|b{700}c){3000}")
    one = compiling.pool.matcher(two_letters)
    other = compiling.pool.matcher(two_letters)
    assert not compiling.goes(one, "a", 1500)
    assert one.error is not None and "states" in one.error
    assert compiling.goes(other, "a", 300) and other.error is None


def test_what_is_slow_to_compile_is_shared_while_in_use(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOW_S", 0.0)
    one = compiling.pool.matcher(LETTERS)
    other = compiling.pool.matcher(LETTERS)
    assert len(compiling.compiled) == 1
    assert compiling.goes(one, "a", 100) and compiling.goes(other, "a", 50)


def test_only_so_many_grammars_are_kept(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_GRAMMARS", 2)
    grammars: list[Any] = [LLMatcher.grammar_from_regex(client_message) for client_message in "abc"]
    for grammar in [*grammars, grammars[2], grammars[0]]:
        compiling.pool.matcher(grammar)
    assert compiling.compiled == [*grammars, grammars[0]]
