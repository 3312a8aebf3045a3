"""What a few tokens added to an answer."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of one tool call, counted from 0; `name` stands in the first piece of each call.

    `arguments` of all pieces, joined, are the call's arguments as JSON.
    """

    index: int
    arguments: str = ""
    name: str | None = None


@dataclass(slots=True)
class Delta:
    """New text of each channel, in the order reasoning, text, calls.

    `warnings` are sentences for the client: about a call that could not be read, say.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Delta") -> "Delta":
        self.text += other.text
        self.reasoning += other.reasoning
        self.calls += other.calls
        self.warnings += other.warnings
        return self

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.warnings)
