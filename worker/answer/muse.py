"""Muse: every part of an answer is a message with a header, which names whom it is to.

     to=self<|message|>...<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>
    <atem:invoke name="get_weather">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eot|>

The prompt has begun the first header. The format is that of mlx-lm's
`chat_templates/muse_spark.py` and of Muse Glimmer's chat template.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from worker.answer.calls import CallWriter
from worker.answer.control import ControlTokens
from worker.answer.delta import CallDelta
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, marker
from worker.answer.formats.tagged import TaggedFormat
from worker.answer.formats.tagged_rules import TaggedRules
from worker.answer.formats.tags import Tags
from worker.answer.messages import MessagesAnswer
from worker.answer.reader import BrokenCall, Reading, TextReader
from worker.answer.section import CallSection
from worker.grammar.lark import Rules, one_of

_START, _MESSAGE, _END, _END_OF_TURN = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
_NEXT = f"{_END}{_START}assistant"
_OPEN, _CLOSE = "<atem:function_calls>", "</atem:function_calls>"
_RECIPIENT = re.compile(r"\bto=(?P<name>[^\s\ufdd0-\ufdef]+)")
_SELF, _USER = "self", "user"
_READERS = frozenset({_USER, "commentary", ""})
"""Whom messages are to that are content."""


class _AtemFormat(TaggedFormat):
    """What a message to a function holds."""

    tags: ClassVar[Tags] = Tags(
        sections=((_OPEN, _CLOSE),),
        call='<atem:invoke name="',
        named='">',
        end="</atem:invoke>",
        key='<atem:parameter name="',
        keyed='">',
        value_end="</atem:parameter>",
        several=True,
    )


_ATEM = _AtemFormat()


class MuseAnswer(MessagesAnswer):
    """Messages to itself are reasoning, those to functions calls, others content."""

    name: ClassVar[str] = "muse"
    markers: ClassVar[tuple[str, ...]] = (_START, _MESSAGE, _END, _END_OF_TURN)

    @staticmethod
    def closing_of_reasoning(*, into_content: bool) -> str:
        return f"{_NEXT} to={_USER}{_MESSAGE}" if into_content else _NEXT

    @staticmethod
    def add_answer(
        rules: Rules, control: ControlTokens, content: str, tools: Sequence[Tool], *, parallel: bool
    ) -> None:
        def tokens(text: str) -> str:
            return marker(control, text)

        alternatives = [f"{tokens(f' to={_USER}{_MESSAGE}')} {content}"] if content else []
        calls = [
            f"{tokens(f' to={tool.name}{_MESSAGE}')} {_add_section(rules, control, number, tool)}"
            for number, tool in enumerate(tools)
        ]
        if calls:
            call = rules.add("call", one_of(calls))
            alternatives.append(f"{call} ({tokens(_NEXT)} {call})*" if parallel else call)
        rules.add("THOUGHT", "/(?s:.*)/")
        thought = f"{tokens(f' to={_SELF}{_MESSAGE}')} THOUGHT {tokens(_NEXT)}"
        rules.add("start", f"({thought})? {one_of(alternatives)}")

    @staticmethod
    def add_call(rules: Rules, control: ControlTokens, tool: Tool) -> None:
        rules.add("start", _add_section(rules, control, 0, tool))

    def _read(self) -> Reading[None]:
        """What has no header goes on with a message of the prompt."""
        if (yield from self._reader.is_next("to=")):
            found = yield from self._read_message()
        else:
            found = yield from self._read_body(self._say)
        while found:
            if found == _START:
                found = yield from self._read_message()
            else:
                self.channel = "content"
                found = yield from self._read_body(len)

    def _read_message(self) -> Reading[str]:
        """A message from its header on; returns the marker that ended it."""
        self._messages += 1
        header: list[str] = []
        if (found := (yield from self._read_body(header.append))) != _MESSAGE:
            return found
        recipient = _RECIPIENT.search("".join(header))
        name = recipient.group("name") if recipient is not None else ""
        if name == _SELF:
            self.channel = "reasoning"
            return (yield from self._read_body(self._reason))
        if name in _READERS:
            self.channel = "content"
            return (yield from self._read_body(self._say))
        self.channel = "tool_calls"
        enforced = self._bind is not None and name in self._names and self._bind(name)
        call = _Call(self._control, self._tools, self._calls, enforced=enforced)
        found = yield from self._read_body(lambda text: self._read_call(call, text))
        self._read_call(call, "", ended=True)
        self._calls = call.count
        return found

    def _read_call(self, call: "_Call", text: str, *, ended: bool = False) -> None:
        before = call.problem
        self._delta.calls += call.finish() if ended else call.push(text)
        if call.problem is not None and before is None:
            self._delta.warnings.append(f"a tool call could not be read: {call.problem}")
        if rest := call.take_text():
            self._say(rest)


class _Call:
    """The body of a message to a function, while it comes.

    Attributes:
        problem: why it is none.
    """

    def __init__(
        self, control: ControlTokens, tools: Sequence[Tool], count: int, *, enforced: bool
    ) -> None:
        reader = TextReader()
        self._before = count
        self._writer = CallWriter({tool.name for tool in tools}, control, count)
        reading = _ATEM.read_section(reader, self._writer, control, tools)
        self._section = CallSection("", reading, reader, self._writer, enforced=enforced)
        self._text = ""  # what is content after all
        self.problem: str | None = None

    @property
    def count(self) -> int:
        """How many calls there are with its own."""
        told = self.problem is None or self._section.enforced
        return self._section.calls if told else self._before

    def push(self, text: str) -> list[CallDelta]:
        """What is to be told now."""
        if self.problem is not None or self._section.done:
            self._text += text
            return []
        try:
            deltas = self._section.push(text)
        except BrokenCall as error:
            return self._give_up(error)
        if self._section.done:
            self._text += self._section.rest.lstrip()
        return deltas

    def finish(self) -> list[CallDelta]:
        """As `push`, at the end of the message."""
        if self.problem is not None or self._section.done:
            return []
        try:
            return self._section.finish()
        except BrokenCall as error:
            return self._give_up(error)

    def take_text(self) -> str:
        """What came since this was asked last and belongs to no call."""
        text, self._text = self._text, ""
        return text

    def _give_up(self, error: BrokenCall) -> list[CallDelta]:
        self.problem = str(error)
        if not self._section.enforced:
            self._text += self._section.text
        return []


def _add_section(rules: Rules, control: ControlTokens, number: int, tool: Tool) -> str:
    call = TaggedRules(rules, control, _AtemFormat.tags, _ATEM.written).call(number, tool)
    return f"{marker(control, _OPEN)} {SPACE} {call} {SPACE} {marker(control, _CLOSE)}"
