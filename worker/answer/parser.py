"""Interface of the parsers that split an answer into its channels."""

from collections.abc import Callable
from typing import Literal, Protocol

from worker.answer.delta import AnswerDelta

Channel = Literal["reasoning", "content", "tool_calls"]

Bind = Callable[[str], bool]
"""Called where a tool call may begin, with its text so far. Returns whether a grammar enforces the
call from here on, so that it can only be valid; otherwise the text is content."""


class AnswerParser(Protocol):
    """Splits the text of one answer, in which control tokens are placeholder characters."""

    @property
    def channel(self) -> Channel:
        """The channel of the next text, as far as is known."""
        ...

    @property
    def has_calls(self) -> bool:
        """Whether a delta of a tool call was returned."""
        ...

    def push(self, text: str) -> AnswerDelta:
        """Return what this text made certain."""
        ...

    def finish(self) -> AnswerDelta:
        """Return the rest at the end of the answer."""
        ...
