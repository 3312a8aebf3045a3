"""What splits an answer into its channels, whatever the format."""

from collections.abc import Callable
from typing import Literal, Protocol

from worker.answer.delta import Delta

Channel = Literal["reasoning", "content", "tool_calls"]

Bind = Callable[[str], bool]
"""Asked where a tool call may begin, with its text so far: whether a grammar took it, so that
the call can only be valid from here on. If not, it is text."""


class AnswerParser(Protocol):
    """Takes the text of one answer, in which control tokens are single characters."""

    @property
    def channel(self) -> Channel:
        """Where the next text will belong, as far as is known."""
        ...

    @property
    def has_calls(self) -> bool:
        """Whether any tool call was told."""
        ...

    def push(self, text: str) -> Delta:
        """What became certain with this text."""
        ...

    def finish(self) -> Delta:
        """The rest, at the end of the answer."""
        ...
