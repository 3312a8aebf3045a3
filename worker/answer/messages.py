"""Answers in which every part is a message with a header, which says whom it is for."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from worker.answer.control import ControlTokens
from worker.answer.delta import Delta
from worker.answer.formats.base import Tool
from worker.answer.parser import Bind, Channel
from worker.answer.reader import Reading, TextReader, run_reading
from worker.grammar.lark import Rules


class MessagesAnswer(ABC):
    """An `AnswerParser`; each family has its own.

    Attributes:
        name: as in `models.<name>.tool_format`.
        markers: added tokens, all of which a model must have.
    """

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]

    def __init__(
        self, control: ControlTokens, tools: Sequence[Tool], *, bind: Bind | None = None
    ) -> None:
        self._control = control
        self._tools = tools
        self._names = {tool.name for tool in tools}
        self._bind = bind
        self._calls = 0
        self._messages = 0
        self._said: dict[Channel, int] = {}  # the last message of each channel
        self._delta = Delta()
        self._reader = TextReader()
        self._reading = self._read()
        self.channel: Channel = "content"
        either = "|".join(re.escape(control.by_token(each)) for each in self.markers)
        self._marker = re.compile(either)

    @staticmethod
    @abstractmethod
    def closing_of_reasoning(*, into_content: bool) -> str:
        """What ends a message of reasoning, and begins the next."""

    @staticmethod
    @abstractmethod
    def add_answer(
        rules: Rules, control: ControlTokens, content: str, tools: Sequence[Tool], *, parallel: bool
    ) -> None:
        """Add the grammar of an answer, `start`, that may think first, and then says `content` or
        calls tools."""

    @staticmethod
    @abstractmethod
    def add_call(rules: Rules, control: ControlTokens, tool: Tool) -> None:
        """Add the grammar, `start`, of what follows the header of a call."""

    @abstractmethod
    def _read(self) -> Reading[None]:
        """Until the end of the answer."""

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def push(self, text: str) -> Delta:
        self._reader.feed(text)
        run_reading(self._reading)
        return self._take()

    def finish(self) -> Delta:
        self._reader.ended = True
        run_reading(self._reading)
        return self._take()

    def _take(self) -> Delta:
        delta, self._delta = self._delta, Delta()
        return delta

    def _read_body(self, emit: Callable[[str], object]) -> Reading[str]:
        """Pass on text until a marker; returns it, or nothing at the end of the answer."""
        while True:
            found = self._marker.search(self._reader.rest)
            if found is not None:
                text = found.string[: found.start()]
                if text:
                    emit(text)
                self._reader.skip(found.end())
                return self._control.spelled(found.group())
            if rest := self._reader.rest:
                emit(rest)
                self._reader.skip(len(rest))
            if self._reader.ended:
                return ""
            yield

    def _say(self, text: str) -> None:
        self._delta.text += self._between("content") + self._control.shown(text)

    def _reason(self, text: str) -> None:
        self._delta.reasoning += self._between("reasoning") + self._control.shown(text)

    def _between(self, channel: Channel) -> str:
        """What parts a message from the one before on the same channel."""
        before = self._said.get(channel, self._messages)
        self._said[channel] = self._messages
        return "\n\n" if before != self._messages else ""
