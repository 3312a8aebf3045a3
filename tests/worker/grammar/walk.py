"""A model that says anything that a grammar allows: random tokens, of which those that may close
something come more often."""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from llguidance.numpy import allocate_token_bitmask
from tokenizers import Tokenizer

from worker.grammar.compiler import GrammarCompiler
from worker.grammar.matcher import Matcher

_CLOSING = '"}]'
_CLOSES = 0.5


@dataclass(slots=True)
class Walk:
    """What came of one.

    Attributes:
        text: None where it did not end within its tokens.
        problem: why it could not go on.
    """

    text: str | None = None
    problem: str | None = None
    token_ids: list[int] = field(default_factory=list)


class Vocabulary:
    """A real tokenizer, and its grammars."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.size = self._tokenizer.get_vocab_size()
        self.end = int(self._tokenizer.token_to_id("<|im_end|>") or 0)
        self.compiler = GrammarCompiler(self._tokenizer.to_str(), self.size, [self.end])
        self._closes = np.array(
            [self._may_close(token_id) for token_id in range(self.compiler.tokenizer.vocab_size)]
        )

    def walk(self, matcher: Matcher, random: Random, most_tokens: int = 200) -> Walk:
        """From a matcher's beginning to an end."""
        walk = Walk()
        bitmask = allocate_token_bitmask(1, self.compiler.tokenizer.vocab_size)
        for _ in range(most_tokens):
            if not matcher.fill(bitmask, 0):
                walk.problem = matcher.error
                return walk
            allowed = np.unpackbits(bitmask.view(np.uint8)[0], bitorder="little").nonzero()[0]
            token_id = self._draw(allowed, random)
            if token_id == self.end:
                break
            walk.token_ids.append(token_id)
            if not matcher.consume(token_id):
                walk.problem = matcher.error
                return walk
            if matcher.stopped:
                break
        else:
            return walk
        walk.text = self._tokenizer.decode(walk.token_ids, skip_special_tokens=False)
        return walk

    def allows(self, matcher: Matcher, text: str) -> bool:
        """Whether a text is an answer."""
        token_ids = self.compiler.tokenizer.tokenize_str(text)
        if matcher.consume_allowed(token_ids) < len(token_ids):
            return False
        return matcher.stopped or matcher.consume_allowed([self.end]) == 1

    def _draw(self, allowed: Any, random: Random) -> int:
        assert len(allowed) > 0, "nothing is allowed, and nobody says so"
        if random.random() < _CLOSES:
            if self.end in allowed:
                return self.end
            closing = allowed[self._closes[allowed]]
            allowed = closing if len(closing) else allowed
        return int(allowed[random.randrange(len(allowed))])

    def _may_close(self, token_id: int) -> bool:
        token = self._tokenizer.id_to_token(token_id) or ""
        return any(character in token for character in _CLOSING)
