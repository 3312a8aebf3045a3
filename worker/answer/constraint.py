"""Which tokens may come next in one answer."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from worker.answer.control import ControlTokenCodec
from worker.answer.parser import Channel
from worker.grammar.matcher import Matcher

Bitmask = NDArray[np.int32]
"""Shape [rows, words]: one bit per token, set if the token is allowed."""


class AnswerMatcher:
    """Follows the tokens of one answer through its grammar. Used by one thread at a time.

    Args:
        control: the placeholder characters of control tokens in the text of calls.
        whole: matcher of the whole answer, at its beginning; None if the answer is free.
        sections: for a free answer, matchers of what follows once a tool call has begun: one
            under the empty name, or one by the text with which each call begins.
        parallel: several calls may follow one another.
        closing_ids: the tokens that end reasoning.
        budget_tokens: maximum number of reasoning tokens; then `closing_ids` are forced.

    Attributes:
        ended: only an end token may follow.
        problem: why no token may follow; None while one may.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        control: ControlTokenCodec,
        *,
        whole: Matcher | None = None,
        sections: Mapping[str, Matcher] | None = None,
        parallel: bool = True,
        closing_ids: Sequence[int] = (),
        budget_tokens: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._whole = whole
        self._sections = dict(sections or {})
        self._matcher = whole
        self._parallel = parallel
        self._closing_ids = list(closing_ids)
        self._budget_tokens = budget_tokens
        self._forced: list[int] = []
        self.ended = False
        self.problem: str | None = None

    @property
    def mask_words(self) -> int:
        """Width of a row of the bitmask: 32-bit words, one bit per token."""
        return -(-self._tokenizer.vocab_size // 32)

    @property
    def restricts(self) -> bool:
        """Whether some tokens are not allowed next."""
        return self.problem is None and (self._matcher is not None or bool(self._forced))

    def enforce_call(self, text: str) -> bool:
        """Enforce a grammar for the call that begins with this text; see `parser.Bind`."""
        if self._whole is not None:
            return True
        section = self._sections.get("") or self._sections.get(text)
        if section is None:
            return False
        section = section.copy()
        parts = self._control.parts(text) if "" in self._sections else []
        token_ids = token_ids_of(parts, self._tokenizer)
        if section.consume_allowed(token_ids) < len(token_ids):
            return False
        self._matcher = section
        return True

    def advance(self, token_id: int) -> None:
        """Advance the matcher by the next token, before the token's text is parsed."""
        if self._forced:
            self._forced.pop(0)
        if self._matcher is not None and not self._matcher.consume(token_id):
            self._fail(self._matcher)

    def update(self, channel: Channel, reasoning_tokens: int) -> None:
        """Apply the end of the grammar and the reasoning budget, after a token's text is parsed."""
        if self._matcher is not None and self._matcher.stopped:
            self._stop(self._matcher)
        exhausted = self._budget_tokens is not None and reasoning_tokens >= self._budget_tokens
        if exhausted and channel == "reasoning" and not self._forced:
            self._forced = list(self._closing_ids)

    def write_mask(self, bitmask: Bitmask, row: int) -> None:
        """Write the allowed tokens into one row of a bitmask."""
        if self._forced:
            bitmask[row] = 0
            word, bit = divmod(self._forced[0], 32)
            bitmask.view(np.uint32)[row, word] = 1 << bit
            return
        assert self._matcher is not None
        if not self._matcher.fill(bitmask, row) or not bitmask[row].any():
            self._fail(self._matcher)
            bitmask[row] = -1

    def _stop(self, matcher: Matcher) -> None:
        if matcher.error is not None:
            self._fail(matcher)
        elif self._whole is not None or not self._parallel:
            self.ended = True
        self._matcher = None

    def _fail(self, matcher: Matcher) -> None:
        reason = matcher.error or "it allows no token"
        self.problem = f"the grammar of the answer cannot go on: {reason}"
        self._matcher = None


def token_ids_of(parts: Iterable[int | str], tokenizer: LLTokenizer) -> list[int]:
    """Return token ids for a sequence of token ids and pieces of ordinary text."""
    token_ids: list[int] = []
    for part in parts:
        token_ids += [part] if isinstance(part, int) else tokenizer.tokenize_str(part)
    return token_ids
