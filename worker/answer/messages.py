"""Answers that are a series of messages, each with a header that names its recipient."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.parser import AnswerDelta, Bind, Channel
from worker.answer.reader import Reading, TextReader, run_reading
from worker.grammar.lark import LarkGrammarBuilder


class MessagesParser(ABC):
    """An `AnswerParser`; each model family has a subclass.

    Attributes:
        name: the value of `models.<name>.tool_format`.
        markers: added tokens, all of which a model must have.
    """

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]

    def __init__(
        self, control: ControlTokenCodec, tools: Sequence[Tool], *, bind: Bind | None = None
    ) -> None:
        self._control = control
        self._tools = tools
        self._names = {tool.name for tool in tools}
        self._bind = bind
        self._calls = 0
        self._messages = 0
        self._last_message: dict[Channel, int] = {}  # number of each channel's last message
        self._delta = AnswerDelta()
        self._reader = TextReader()
        self._reading = self._read()
        self.channel: Channel = "content"
        either = "|".join(re.escape(control.encode(each)) for each in self.markers)
        self._marker = re.compile(either)

    @staticmethod
    @abstractmethod
    def closing_of_reasoning(*, into_content: bool) -> str:
        """Return the markers that end a message of reasoning and begin the next message."""

    @staticmethod
    @abstractmethod
    def add_answer(
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        content: str,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> None:
        """Add the grammar of an answer as `start`: optional reasoning, then `content` or tool
        calls."""

    @staticmethod
    @abstractmethod
    def add_call(rules: LarkGrammarBuilder, control: ControlTokenCodec, tool: Tool) -> None:
        """Add the grammar of what follows the header of a call as `start`."""

    @abstractmethod
    def _read(self) -> Reading[None]:
        """Read until the end of the answer."""

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def push(self, text: str) -> AnswerDelta:
        self._reader.feed(text)
        run_reading(self._reading)
        return self._take_delta()

    def finish(self) -> AnswerDelta:
        self._reader.ended = True
        run_reading(self._reading)
        return self._take_delta()

    def _take_delta(self) -> AnswerDelta:
        delta, self._delta = self._delta, AnswerDelta()
        return delta

    def _read_body(self, emit: Callable[[str], object]) -> Reading[str]:
        """Emit text until a marker; returns the marker, or `""` at the end of the answer."""
        while True:
            found = self._marker.search(self._reader.rest)
            if found is not None:
                text = found.string[: found.start()]
                if text:
                    emit(text)
                self._reader.skip(found.end())
                return self._control.spell_out(found.group())
            if rest := self._reader.rest:
                emit(rest)
                self._reader.skip(len(rest))
            if self._reader.ended:
                return ""
            yield

    def _emit_content(self, text: str) -> None:
        self._delta.text += self._separator("content") + self._control.visible(text)

    def _emit_reasoning(self, text: str) -> None:
        self._delta.reasoning += self._separator("reasoning") + self._control.visible(text)

    def _separator(self, channel: Channel) -> str:
        """Return what separates a message from the one before it on the same channel."""
        before = self._last_message.get(channel, self._messages)
        self._last_message[channel] = self._messages
        return "\n\n" if before != self._messages else ""
