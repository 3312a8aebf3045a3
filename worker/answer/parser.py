"""What splits an answer: the interface of parsers, and the pieces that they find."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of one tool call; `index` counts calls from 0. The first piece has the `name`.

    The `arguments` of all pieces, joined, are the call's arguments as JSON.
    """

    index: int
    arguments: str = ""
    name: str | None = None


@dataclass(slots=True)
class AnswerDelta:
    """New text of each channel, in the order reasoning, text, calls.

    `warnings` are sentences for the client, for example about a tool call that was not parsed.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __iadd__(self, other: "AnswerDelta") -> "AnswerDelta":
        self.text += other.text
        self.reasoning += other.reasoning
        self.calls += other.calls
        self.warnings += other.warnings
        return self

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.warnings)


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
