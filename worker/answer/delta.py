"""What one token or more added to an answer."""

from dataclasses import dataclass, field


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
