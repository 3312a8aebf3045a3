"""Formats whose calls are a name and JSON between markers, in a section with its own markers."""

import re
from collections.abc import Collection, Sequence
from typing import ClassVar

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, add_json, marker
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import LarkGrammarBuilder, literal, one_of

_NAME = re.compile(r"[^\s<\ufdd0-\ufdef]+")


class NameThenJsonFormat:
    """A section is one call or more:

        {open} {call}NAME{arguments}JSON{call_end} ... {close}

    White space at the ends of `arguments` and `call_end` is enforced by the grammar, but optional
    for the parser.
    """

    open: ClassVar[str]
    close: ClassVar[str]
    call: ClassVar[str]
    arguments: ClassVar[str]
    call_end: ClassVar[str]

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.skip_space()
        yield from reader.expect(self.call)
        yield from reader.skip_space()
        yield from reader.expect(*map(self.call_head, names))

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        arguments, end = marker(control, self.arguments), marker(control, self.call_end)
        calls = [
            f"{self.name_rule(tool.name)} {arguments} "
            + add_json(rules, f"arguments_{number}", tool.parameters)
            for number, tool in enumerate(tools)
        ]
        named = rules.add("named", one_of(calls))
        call = rules.add("call", f"{marker(control, self.call)} {named} {end}")
        several = f"{call} ({SPACE} {call})*" if parallel else call
        return rules.add(
            "section", f"{marker(control, self.open)} {several} {marker(control, self.close)}"
        )

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        call, close = control.forms(self.call), control.forms(self.close)
        yield from reader.expect(*control.forms(self.open))
        yield from reader.skip_space()
        yield from reader.expect(*call)
        while True:
            yield from reader.skip_space()
            calls.begin(self.decode_name((yield from reader.match(_NAME, "a name"))))
            yield from reader.skip_space()
            yield from reader.expect(*control.forms(self.arguments.strip()))
            yield from reader.skip_space()
            yield from reader.json_value(calls.write)
            calls.end()
            yield from reader.skip_space()
            yield from reader.expect(*control.forms(self.call_end.strip()))
            yield from reader.skip_space()
            if not (yield from reader.peek()):  # some models end an answer without the marker
                return
            if (yield from reader.expect(*call, *close)) in close:
                return

    def call_head(self, name: str) -> str:
        """Return the text between `call` and the arguments of a call."""
        return f"{name}{self.arguments}"

    def name_rule(self, name: str) -> str:
        """Return a rule body for the name of a function."""
        return literal(name)

    def decode_name(self, encoded: str) -> str:
        """Return the name of the function from its form in a call."""
        return encoded


_PREFIX = "functions."


class KimiFormat(NameThenJsonFormat):
    """The number counts the calls of the conversation."""

    name: ClassVar[str] = "kimi_k2"
    open: ClassVar[str] = "<|tool_calls_section_begin|>"
    close: ClassVar[str] = "<|tool_calls_section_end|>"
    call: ClassVar[str] = "<|tool_call_begin|>"
    arguments: ClassVar[str] = "<|tool_call_argument_begin|>"
    call_end: ClassVar[str] = "<|tool_call_end|>"
    markers: ClassVar[tuple[str, ...]] = (open, close, call, arguments, call_end)
    openings: ClassVar[tuple[str, ...]] = (open,)

    def call_head(self, name: str) -> str:
        return f"{_PREFIX}{name}:"

    def name_rule(self, name: str) -> str:
        return f"{literal(f'{_PREFIX}{name}:')} /[0-9]{{1,4}}/"

    def decode_name(self, encoded: str) -> str:
        return encoded.removeprefix(_PREFIX).rpartition(":")[0] or encoded
