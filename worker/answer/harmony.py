"""gpt-oss: every part of an answer is a message with a header, which names its channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
    to=functions.name <|constrain|>json<|message|>{...}<|call|>

The format is OpenAI's "harmony" (https://developers.openai.com/cookbook/articles/openai-harmony).
"""

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from worker.answer.calls import CallWriter
from worker.answer.control import ControlTokens
from worker.answer.delta import Delta
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import add_json, marker
from worker.answer.parser import Bind, Channel
from worker.answer.reader import BrokenCall, Reading, TextReader, run_reading
from worker.grammar.lark import Rules, one_of

_START, _CHANNEL, _MESSAGE, _END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_CALL, _RETURN, _CONSTRAIN = "<|call|>", "<|return|>", "<|constrain|>"
_RECIPIENT = re.compile(r"\bto=functions\.(?P<name>[^\s\ufdd0-\ufdef]+)")
_CHANNEL_NAME = re.compile(r"\s*(?P<channel>[a-z]+)")


class HarmonyAnswer:
    """An `AnswerParser`. Analysis is reasoning; commentary to a function is a call, other
    commentary, like what is final, content."""

    markers: ClassVar = (_START, _CHANNEL, _MESSAGE, _END, _CALL, _RETURN, _CONSTRAIN)

    def __init__(
        self, control: ControlTokens, tools: Sequence[Tool], *, bind: Bind | None = None
    ) -> None:
        self._control = control
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
    def closing_of_reasoning(*, into_content: bool) -> str:
        """What ends a message of analysis, and begins the next."""
        begun = f"{_END}{_START}assistant"
        return f"{begun}{_CHANNEL}final{_MESSAGE}" if into_content else begun

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

    def _read(self) -> Reading[None]:
        """Until the end of the answer. What stands before the first header is content."""
        marker = yield from self._read_body(self._say)
        while marker:
            if marker in (_START, _CHANNEL):
                marker = yield from self._read_message(marker)
            else:
                self.channel = "content"
                marker = yield from self._read_body(_nothing)

    def _read_message(self, marker: str) -> Reading[str]:
        """A message behind its first marker; returns the one that ended it."""
        self._messages += 1
        parts: list[str] = []
        channel = ""
        while marker not in (_MESSAGE, ""):
            pieces: list[str] = []
            in_channel = marker == _CHANNEL
            marker = yield from self._read_body(pieces.append)
            parts.append("".join(pieces))
            found = _CHANNEL_NAME.match(parts[-1])
            if in_channel and found is not None:
                channel = found.group("channel")
        recipient = _RECIPIENT.search(" ".join(parts))
        if not marker:
            return ""
        if recipient is not None:
            return (yield from self._read_call(recipient.group("name")))
        if channel == "analysis":
            self.channel = "reasoning"
            return (yield from self._read_body(self._reason))
        self.channel = "content"
        return (yield from self._read_body(self._say))

    def _read_call(self, name: str) -> Reading[str]:
        self.channel = "tool_calls"
        calls = CallWriter(self._names, self._control, self._calls)
        text: list[str] = []
        enforced = self._bind is not None and name in self._names and self._bind(name)
        marker = ""
        try:
            calls.begin(name)
            if enforced:
                self._delta.calls += calls.take()

            def write(piece: str) -> None:
                text.append(piece)
                calls.write(piece)
                if enforced:
                    self._delta.calls += calls.take()

            marker = yield from self._read_body(write)
            if marker or (text and not enforced):
                calls.end()
            elif not enforced:
                raise BrokenCall("it does not end")
            self._delta.calls += calls.take()
            self._calls = calls.count
        except BrokenCall as error:
            self._delta.warnings.append(f"a tool call could not be read: {error}")
            if not text:
                marker = yield from self._read_body(text.append)
            self._say("".join(text))
        return marker

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


def _nothing(text: str) -> None:
    pass


def add_harmony_answer(
    rules: Rules, control: ControlTokens, content: str, tools: Sequence[Tool]
) -> None:
    """The grammar of an answer that may think first, and then says `content` or calls a tool."""

    def tokens(text: str) -> str:
        return marker(control, text)

    alternatives = [f"{tokens(f'{_CHANNEL}final{_MESSAGE}')} {content}"] if content else []
    for number, tool in enumerate(tools):
        header = f"{_CHANNEL}commentary to=functions.{tool.name} {_CONSTRAIN}json{_MESSAGE}"
        arguments = add_json(rules, f"arguments_{number}", tool.parameters)
        alternatives.append(f"{tokens(header)} {arguments}")
    thought = tokens(f"{_CHANNEL}analysis{_MESSAGE}")
    behind = tokens(f"{_END}{_START}assistant")
    rules.add("THOUGHT", "/(?s:.*)/")
    rules.add("start", f"({thought} THOUGHT {behind})? {one_of(alternatives)}")
