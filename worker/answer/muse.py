"""Muse: an answer is a series of messages, each with a header that names its recipient.

     to=self<|message|>...<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>
    <atem:invoke name="get_weather">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eot|>

The prompt contains the beginning of the first header. The format is that of mlx-lm's
`chat_templates/muse_spark.py` and of Muse Glimmer's chat template.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, marker
from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags, TaggedValueGrammar
from worker.answer.messages import MessagesParser
from worker.answer.parser import CallDelta
from worker.answer.reader import BrokenCall, Reading, TextReader
from worker.answer.section import CallSectionParser
from worker.grammar.lark import LarkGrammarBuilder, one_of

_START, _MESSAGE, _END, _END_OF_TURN = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
_NEXT = f"{_END}{_START}assistant"
_OPEN, _CLOSE = "<atem:function_calls>", "</atem:function_calls>"
_RECIPIENT = re.compile(r"\bto=(?P<name>[^\s\ufdd0-\ufdef]+)")
_SELF, _USER = "self", "user"
_CONTENT_RECIPIENTS = frozenset({_USER, "commentary", ""})
"""Recipients of messages that are content."""


class _AtemFormat(TaggedValuesFormat):
    """The body of a message to a function."""

    tags: ClassVar[CallTags] = CallTags(
        sections=((_OPEN, _CLOSE),),
        call='<atem:invoke name="',
        named='">',
        end="</atem:invoke>",
        key='<atem:parameter name="',
        keyed='">',
        value_end="</atem:parameter>",
        multiple=True,
    )


_ATEM = _AtemFormat()


class MuseParser(MessagesParser):
    """Messages to `self` are reasoning, messages to functions are calls, others are content."""

    name: ClassVar[str] = "muse"
    markers: ClassVar[tuple[str, ...]] = (_START, _MESSAGE, _END, _END_OF_TURN)

    @staticmethod
    def closing_of_reasoning(*, into_content: bool) -> str:
        return f"{_NEXT} to={_USER}{_MESSAGE}" if into_content else _NEXT

    @staticmethod
    def add_answer(
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        content: str,
        tools: Sequence[Tool],
        *,
        parallel: bool,
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
    def add_call(rules: LarkGrammarBuilder, control: ControlTokenCodec, tool: Tool) -> None:
        rules.add("start", _add_section(rules, control, 0, tool))

    def _read(self) -> Reading[None]:
        """Text before the first header continues a message of the prompt."""
        if (yield from self._reader.is_next("to=")):
            found = yield from self._read_message()
        else:
            found = yield from self._read_body(self._emit_content)
        while found:
            if found == _START:
                found = yield from self._read_message()
            else:
                self.channel = "content"
                found = yield from self._read_body(len)

    def _read_message(self) -> Reading[str]:
        """Read a message from its header on; returns the marker that ended it."""
        self._messages += 1
        header: list[str] = []
        if (found := (yield from self._read_body(header.append))) != _MESSAGE:
            return found
        recipient = _RECIPIENT.search("".join(header))
        name = recipient.group("name") if recipient is not None else ""
        if name == _SELF:
            self.channel = "reasoning"
            return (yield from self._read_body(self._emit_reasoning))
        if name in _CONTENT_RECIPIENTS:
            self.channel = "content"
            return (yield from self._read_body(self._emit_content))
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
            self._emit_content(rest)


class _Call:
    """The body of a message to a function while it is read.

    Attributes:
        problem: why the body is not a call; None while it may be one.
    """

    def __init__(
        self, control: ControlTokenCodec, tools: Sequence[Tool], count: int, *, enforced: bool
    ) -> None:
        reader = TextReader()
        self._before = count
        self._writer = CallDeltaBuilder({tool.name for tool in tools}, control, count)
        reading = _ATEM.read_section(reader, self._writer, control, tools)
        self._section = CallSectionParser("", reading, reader, self._writer, enforced=enforced)
        self._text = ""  # text of the body that turned out to be content
        self.problem: str | None = None

    @property
    def count(self) -> int:
        """Number of calls of the answer, those of this message included."""
        reported = self.problem is None or self._section.enforced
        return self._section.calls if reported else self._before

    def push(self, text: str) -> list[CallDelta]:
        """Return the deltas that can be sent now."""
        if self.problem is not None or self._section.done:
            self._text += text
            return []
        try:
            deltas = self._section.push(text)
        except BrokenCall as error:
            return self._abandon(error)
        if self._section.done:
            self._text += self._section.rest.lstrip()
        return deltas

    def finish(self) -> list[CallDelta]:
        """Return the rest of the deltas at the end of the message."""
        if self.problem is not None or self._section.done:
            return []
        try:
            return self._section.finish()
        except BrokenCall as error:
            return self._abandon(error)

    def take_text(self) -> str:
        """Remove and return the text that belongs to no call."""
        text, self._text = self._text, ""
        return text

    def _abandon(self, error: BrokenCall) -> list[CallDelta]:
        self.problem = str(error)
        if not self._section.enforced:
            self._text += self._section.text
        return []


def _add_section(
    rules: LarkGrammarBuilder, control: ControlTokenCodec, number: int, tool: Tool
) -> str:
    call = TaggedValueGrammar(rules, control, _AtemFormat.tags, _ATEM.encode_name).call(
        number, tool
    )
    return f"{marker(control, _OPEN)} {SPACE} {call} {SPACE} {marker(control, _CLOSE)}"
