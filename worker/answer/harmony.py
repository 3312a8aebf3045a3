"""gpt-oss: an answer is a series of messages, each with a header that names its channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
    to=functions.name <|constrain|>json<|message|>{...}<|call|>

The format is OpenAI's "harmony" (https://developers.openai.com/cookbook/articles/openai-harmony).
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import add_json, marker
from worker.answer.messages import MessagesParser
from worker.answer.reader import BrokenCall, Reading
from worker.grammar.lark import LarkGrammarBuilder, one_of

_START, _CHANNEL, _MESSAGE, _END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_CALL, _RETURN, _CONSTRAIN = "<|call|>", "<|return|>", "<|constrain|>"
_RECIPIENT = re.compile(r"\bto=functions\.(?P<name>[^\s\ufdd0-\ufdef]+)")
_CHANNEL_NAME = re.compile(r"\s*(?P<channel>[a-z]+)")


class HarmonyParser(MessagesParser):
    """The analysis channel is reasoning, commentary to a function is a call, and other commentary
    and the final channel are content."""

    name: ClassVar[str] = "harmony"
    markers: ClassVar[tuple[str, ...]] = (
        _START,
        _CHANNEL,
        _MESSAGE,
        _END,
        _CALL,
        _RETURN,
        _CONSTRAIN,
    )

    @staticmethod
    def closing_of_reasoning(*, into_content: bool) -> str:
        next_message = f"{_END}{_START}assistant"
        return f"{next_message}{_CHANNEL}final{_MESSAGE}" if into_content else next_message

    @staticmethod
    def add_answer(
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        content: str,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> None:
        """Ignores `parallel`: one call ends the turn."""

        def tokens(text: str) -> str:
            return marker(control, text)

        alternatives = [f"{tokens(f'{_CHANNEL}final{_MESSAGE}')} {content}"] if content else []
        for number, tool in enumerate(tools):
            header = f"{_CHANNEL}commentary to=functions.{tool.name} {_CONSTRAIN}json{_MESSAGE}"
            arguments = add_json(rules, f"arguments_{number}", tool.parameters)
            alternatives.append(f"{tokens(header)} {arguments}")
        thought = tokens(f"{_CHANNEL}analysis{_MESSAGE}")
        next_message = tokens(f"{_END}{_START}assistant")
        rules.add("THOUGHT", "/(?s:.*)/")
        rules.add("start", f"({thought} THOUGHT {next_message})? {one_of(alternatives)}")

    @staticmethod
    def add_call(rules: LarkGrammarBuilder, control: ControlTokenCodec, tool: Tool) -> None:
        rules.add("start", add_json(rules, "arguments", tool.parameters))

    def _read(self) -> Reading[None]:
        """Text before the first header is content."""
        marker = yield from self._read_body(self._emit_content)
        while marker:
            if marker in (_START, _CHANNEL):
                marker = yield from self._read_message(marker)
            else:
                self.channel = "content"
                marker = yield from self._read_body(_ignore)

    def _read_message(self, marker: str) -> Reading[str]:
        """Read a message after its first marker; returns the marker that ended it."""
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
            return (yield from self._read_body(self._emit_reasoning))
        self.channel = "content"
        return (yield from self._read_body(self._emit_content))

    def _read_call(self, name: str) -> Reading[str]:
        self.channel = "tool_calls"
        calls = CallDeltaBuilder(self._names, self._control, self._calls)
        text: list[str] = []
        enforced = self._bind is not None and name in self._names and self._bind(name)
        marker = ""
        try:
            calls.begin(name)
            if enforced:
                self._delta.calls += calls.take_deltas()

            def write(piece: str) -> None:
                text.append(piece)
                calls.write(piece)
                if enforced:
                    self._delta.calls += calls.take_deltas()

            marker = yield from self._read_body(write)
            if marker or (text and not enforced):
                calls.end()
            elif not enforced:
                raise BrokenCall("it does not end")
            self._delta.calls += calls.take_deltas()
            self._calls = calls.count
        except BrokenCall as error:
            self._delta.warnings.append(f"a tool call could not be read: {error}")
            if not text:
                marker = yield from self._read_body(text.append)
            self._emit_content("".join(text))
        return marker


def _ignore(text: str) -> None:
    pass
