"""One choice of an answer, put together from its outputs while they come."""

from collections.abc import Mapping
from typing import Any

from shared.messages.request import SentCharacters
from shared.messages.stream import ChoiceOutput, assistant_turn, plain_calls

_MAX_PIECES = 256
"""Short strings take more memory than their characters."""


class PartialAnswer:
    """What has come of one choice: content, reasoning and tool calls."""

    def __init__(self) -> None:
        self._text = _Pieces()
        self._reasoning = _Pieces()
        self._calls: dict[int, _PartialCall] = {}
        self.finish_reason: str | None = None

    def add(self, output: ChoiceOutput) -> None:
        """Take in what is new."""
        self._text.add(output.text)
        self._reasoning.add(output.reasoning or "")
        for piece in output.tool_calls or ():
            index = piece["index"]
            if index not in self._calls:
                self._calls[index] = _PartialCall(piece)
            self._calls[index].arguments.add(piece["function"]["arguments"])
        self.finish_reason = output.finish_reason

    @property
    def text(self) -> str:
        return self._text.joined

    @property
    def reasoning(self) -> str:
        return self._reasoning.joined

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Each {"id", "type", "function": {"name", "arguments"}}."""
        return plain_calls(self._calls[index].whole for index in sorted(self._calls))

    @property
    def message(self) -> dict[str, Any]:
        return assistant_turn(self.text, self.reasoning, self.tool_calls)

    @property
    def characters(self) -> SentCharacters:
        """How many came of each channel."""
        calls = [self._calls[index].arguments.count for index in sorted(self._calls)]
        return SentCharacters(
            text=self._text.count, reasoning=self._reasoning.count, tool_calls=calls
        )


class _Pieces:
    """A text that comes in pieces; `count` are its characters."""

    def __init__(self) -> None:
        self.count = 0
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        if piece:
            self.count += len(piece)
            self._pieces.append(piece)
            if len(self._pieces) == _MAX_PIECES:
                self._pieces = [self.joined]

    @property
    def joined(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


class _PartialCall:
    """A tool call: its first piece, and the arguments of all of them."""

    def __init__(self, first: Mapping[str, Any]) -> None:
        self._first = first
        self.arguments = _Pieces()

    @property
    def whole(self) -> dict[str, Any]:
        function = {**self._first["function"], "arguments": self.arguments.joined}
        return {**self._first, "function": function}
