"""Matchers, which follow answers through grammars, and a pool of compiled grammars.

Copies of an llguidance matcher share a lexer: its states, the limit of their number, and the error
once a copy has reached a limit. So each of several answers at a time uses a separately compiled
grammar; a later answer reuses the lexer of a finished one.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

_MAX_GRAMMARS = 256
"""Maximum number of grammars in the pool."""
_MAX_COMPILED_PER_GRAMMAR = 32
"""Maximum number of compiled copies of one grammar."""
_MAX_USES = 16
"""Number of answers per lexer, as each answer adds some hundreds of states to it."""
_SLOW_S = 0.05
"""A grammar that takes longer to compile is shared if all of its compiled copies are in use."""


@dataclass(slots=True, weakref_slot=True)
class _Compiled:
    """One compilation of a grammar. `beginning` is never advanced, only its copies are.

    Attributes:
        uses: number of matchers that were created from it.
        spoiled: a copy has failed.
        use: the answer that uses it now.
    """

    beginning: LLMatcher
    uses: int = 0
    spoiled: bool = False
    use: "ReferenceType[_Use] | None" = None

    @property
    def used_up(self) -> bool:
        return self.spoiled or self.uses >= _MAX_USES

    @property
    def is_free(self) -> bool:
        return self.use is None or self.use() is None


@dataclass(slots=True, weakref_slot=True)
class _Use:
    """Referenced by all matchers of one answer; garbage collection frees the compilation."""

    compiled: _Compiled


class Matcher:
    """The position of one answer in a grammar. Used by one thread at a time."""

    __slots__ = ("_inner", "_use")

    def __init__(self, inner: LLMatcher, use: _Use) -> None:
        self._inner = inner
        self._use = use

    def copy(self) -> "Matcher":
        """Return a matcher for the same answer at the same position."""
        return Matcher(self._inner.deep_copy(), self._use)

    def consume(self, token_id: int) -> bool:
        """Advance by a token; returns False if it is not allowed, and the matcher has failed."""
        accepted: bool = self._inner.consume_token(token_id)
        self._use.compiled.spoiled |= not accepted
        return accepted

    def consume_allowed(self, token_ids: Sequence[int]) -> int:
        """Advance by the longest allowed prefix of the tokens; returns its length."""
        return int(self._inner.try_consume_tokens(list(token_ids)))

    def fill(self, bitmask: Any, row: int) -> bool:
        """Write the allowed tokens into one row of a bitmask; returns False if a limit is reached,
        and the matcher has failed."""
        fill_next_token_bitmask(self._inner, bitmask, row)
        failed: bool = self._inner.is_error()
        self._use.compiled.spoiled |= failed
        return not failed

    @property
    def stopped(self) -> bool:
        """Whether no token may follow."""
        return bool(self._inner.is_stopped())

    @property
    def error(self) -> str | None:
        """Why the matcher has failed; None if it has not."""
        return " ".join(self._inner.get_error().split())[:200] if self._inner.is_error() else None


class MatcherPool:
    """Matchers of many grammars, which are compiled on demand. Used by one thread.

    Args:
        compile: compiles the text of a grammar; may raise ValueError.
    """

    def __init__(self, compile: Callable[[str], LLMatcher]) -> None:
        self._compile = compile
        self._compiled: OrderedDict[str, list[_Compiled]] = OrderedDict()  # in order of last use
        self._slow: set[str] = set()

    def matcher(self, grammar: str) -> Matcher:
        """Return a matcher at the beginning of a grammar.

        Raises:
            ValueError: the grammar cannot be compiled.
        """
        known = [each for each in self._compiled.get(grammar, ()) if not each.used_up]
        found = next((each for each in known if each.is_free), None)
        if found is None and known and grammar in self._slow:
            found = min(known, key=lambda each: each.uses)
        if found is None:
            began_at = time.perf_counter()
            found = _Compiled(self._compile(grammar))
            if time.perf_counter() - began_at > _SLOW_S:
                self._slow.add(grammar)
            known = [*known, found][-_MAX_COMPILED_PER_GRAMMAR:]
        self._store(grammar, known)
        found.uses += 1
        use = found.use() if found.use is not None else None
        if use is None:
            use = _Use(found)
            found.use = ref(use)
        return Matcher(found.beginning.deep_copy(), use)

    def _store(self, grammar: str, compiled: list[_Compiled]) -> None:
        self._compiled[grammar] = compiled
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > _MAX_GRAMMARS:
            evicted, _ = self._compiled.popitem(last=False)
            self._slow.discard(evicted)
