"""Where answers are in grammars.

Copies of llguidance's matchers share a lexer: the states that it has seen, how many it may have,
and the error where one of them has reached a limit. So answers that go on at the same time are each
in a grammar that was compiled for them; what one leaves behind, the next one goes on with.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

_KEPT = 256
"""So many grammars."""
_MOST_COMPILED = 32
"""Of one of them."""
_MOST_USES = 16
"""After so many answers a lexer begins anew: the states of one answer are some hundreds."""
_SLOW_S = 0.05
"""What takes longer to compile is shared where all that there are of it are in use."""


@dataclass(slots=True, weakref_slot=True)
class _Compiled:
    """A grammar as it was compiled once. Nobody goes on with `beginning`, only copies do.

    Attributes:
        spoiled: one of them has ended badly.
        use: by whom it is in use now.
    """

    beginning: LLMatcher
    uses: int = 0
    spoiled: bool = False
    use: "ReferenceType[_Use] | None" = None

    @property
    def used_up(self) -> bool:
        return self.spoiled or self.uses >= _MOST_USES

    @property
    def is_free(self) -> bool:
        return self.use is None or self.use() is None


@dataclass(slots=True, weakref_slot=True)
class _Use:
    """Held by all copies of one answer."""

    compiled: _Compiled


class Matcher:
    """Where one answer is in a grammar. Belongs to one thread at a time."""

    __slots__ = ("_inner", "_use")

    def __init__(self, inner: LLMatcher, use: _Use) -> None:
        self._inner = inner
        self._use = use

    def copy(self) -> "Matcher":
        """For the same answer, to go on from here."""
        return Matcher(self._inner.deep_copy(), self._use)

    def consume(self, token_id: int) -> bool:
        """Go on with a token; False where it is not allowed: that is a bad end."""
        taken: bool = self._inner.consume_token(token_id)
        self._use.compiled.spoiled |= not taken
        return taken

    def consume_allowed(self, token_ids: Sequence[int]) -> int:
        """Go on with the first of these tokens, as far as they are allowed; returns how many."""
        return int(self._inner.try_consume_tokens(list(token_ids)))

    def fill(self, bitmask: Any, row: int) -> bool:
        """Set the bits of what may be next in a row of a mask; False where a limit is reached: that
        is a bad end."""
        fill_next_token_bitmask(self._inner, bitmask, row)
        failed: bool = self._inner.is_error()
        self._use.compiled.spoiled |= failed
        return not failed

    @property
    def stopped(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._inner.is_stopped())

    @property
    def error(self) -> str | None:
        """What was bad about its end; None where nothing was."""
        return " ".join(self._inner.get_error().split())[:200] if self._inner.is_error() else None


class MatcherPool:
    """Matchers of many grammars, compiled as they are needed. Belongs to one thread.

    Args:
        compile: a grammar, given as text; it may raise ValueError.
    """

    def __init__(self, compile: Callable[[str], LLMatcher]) -> None:
        self._compile = compile
        self._compiled: OrderedDict[str, list[_Compiled]] = OrderedDict()  # the last used one last
        self._slow: set[str] = set()

    def matcher(self, grammar: str) -> Matcher:
        """At the beginning of a grammar.

        Raises:
            ValueError: it cannot be compiled.
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
            known = [*known, found][-_MOST_COMPILED:]
        self._keep(grammar, known)
        found.uses += 1
        use = found.use() if found.use is not None else None
        if use is None:
            use = _Use(found)
            found.use = ref(use)
        return Matcher(found.beginning.deep_copy(), use)

    def _keep(self, grammar: str, compiled: list[_Compiled]) -> None:
        self._compiled[grammar] = compiled
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > _KEPT:
            forgotten, _ = self._compiled.popitem(last=False)
            self._slow.discard(forgotten)
