"""What the next token of one answer may be."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from worker.answer.control import ControlTokens
from worker.answer.parser import Channel
from worker.grammar.matcher import Matcher

Bitmask = NDArray[np.int32]
"""[rows, words]: a bit for each token that is allowed."""


class Constraint:
    """Goes along with the tokens of an answer. Belongs to one thread at a time.

    Args:
        control: what stands for control tokens in the text of calls.
        whole: the grammar of the whole answer, at its beginning; None where the answer is free.
        sections: where the answer is free, the grammars of what follows once a tool call has begun.
        parallel: several calls may follow one another.
        closing_ids: the tokens that end reasoning.
        budget_tokens: of reasoning; then it is ended.

    Attributes:
        ended: nothing but an end may follow.
        problem: why there is no next token; None while there is one.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        control: ControlTokens,
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
    def words(self) -> int:
        """Of 32 bits each, for all tokens."""
        return -(-self._tokenizer.vocab_size // 32)

    @property
    def masks(self) -> bool:
        """Whether not every token may be next."""
        return self.problem is None and (self._matcher is not None or bool(self._forced))

    def bind(self, text: str) -> bool:
        """A call begins with this text, as `parser.Bind` says."""
        if self._whole is not None:
            return True
        section = self._sections.get("") or self._sections.get(text)
        if section is None:
            return False
        section = section.copy()
        parts = self._control.parts(text) if "" in self._sections else []
        begun = token_ids_of(parts, self._tokenizer)
        if section.consume_allowed(begun) < len(begun):
            return False
        self._matcher = section
        return True

    def take(self, token_id: int) -> None:
        """The next token; before its text is parsed."""
        if self._forced:
            self._forced.pop(0)
        if self._matcher is not None and not self._matcher.consume(token_id):
            self._give_up(self._matcher)

    def parsed(self, channel: Channel, reasoning_tokens: int) -> None:
        """Where the answer is now that the text of a token is parsed."""
        if self._matcher is not None and self._matcher.stopped:
            self._stop(self._matcher)
        over = self._budget_tokens is not None and reasoning_tokens >= self._budget_tokens
        if over and channel == "reasoning" and not self._forced:
            self._forced = list(self._closing_ids)

    def fill(self, bitmask: Bitmask, row: int) -> None:
        """Set the bits of what may be next in a row of a mask."""
        if self._forced:
            bitmask[row] = 0
            word, bit = divmod(self._forced[0], 32)
            bitmask.view(np.uint32)[row, word] = 1 << bit
            return
        assert self._matcher is not None
        if not self._matcher.fill(bitmask, row) or not bitmask[row].any():
            self._give_up(self._matcher)
            bitmask[row] = -1

    def _stop(self, matcher: Matcher) -> None:
        if matcher.error is not None:
            self._give_up(matcher)
        elif self._whole is not None or not self._parallel:
            self.ended = True
        self._matcher = None

    def _give_up(self, matcher: Matcher) -> None:
        said = matcher.error or "it allows no token"
        self.problem = f"the grammar of the answer cannot go on: {said}"
        self._matcher = None


def token_ids_of(parts: Iterable[int | str], tokenizer: LLTokenizer) -> list[int]:
    """Ids and pieces of ordinary text as token ids."""
    token_ids: list[int] = []
    for part in parts:
        token_ids += [part] if isinstance(part, int) else tokenizer.tokenize_str(part)
    return token_ids
