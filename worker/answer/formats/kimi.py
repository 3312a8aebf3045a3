"""Kimi K2: a section of calls between tokens, each `functions.<name>:<number>` and JSON."""

import re
from collections.abc import Collection, Sequence
from typing import ClassVar

from worker.answer.calls import CallWriter
from worker.answer.control import ControlTokens
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, add_json, marker
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import Rules, literal, one_of

_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = (
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
)  # fmt: skip
_PREFIX = "functions."
_NAME = re.compile(r"[^\s\ufdd0-\ufdef]+")


class KimiFormat:
    """The number counts the calls of the conversation."""

    name: ClassVar[str] = "kimi_k2"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE, _CALL, _ARGUMENTS, _CALL_END)
    openings: ClassVar[tuple[str, ...]] = (_OPEN,)

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.skip_space()
        yield from reader.expect(_CALL)
        yield from reader.skip_space()
        yield from reader.expect(*(f"{_PREFIX}{name}:" for name in names))

    def add_section(
        self, rules: Rules, control: ControlTokens, tools: Sequence[Tool], *, parallel: bool
    ) -> str:
        head, arguments = marker(control, _CALL), marker(control, _ARGUMENTS)
        calls = [
            f"{literal(f'{_PREFIX}{tool.name}:')} /[0-9]{{1,4}}/ {arguments} "
            + add_json(rules, f"arguments_{number}", tool.parameters)
            for number, tool in enumerate(tools)
        ]
        named = rules.add("named", one_of(calls))
        call = rules.add("call", f"{head} {named} {marker(control, _CALL_END)}")
        several = f"{call} ({SPACE} {call})*" if parallel else call
        return rules.add("section", f"{marker(control, _OPEN)} {several} {marker(control, _CLOSE)}")

    def read_section(
        self, reader: TextReader, calls: CallWriter, control: ControlTokens, tools: Sequence[Tool]
    ) -> Reading[None]:
        head, close = control.forms(_CALL), control.forms(_CLOSE)
        yield from reader.expect(*control.forms(_OPEN))
        yield from reader.skip_space()
        yield from reader.expect(*head)
        while True:
            yield from reader.skip_space()
            named = yield from reader.take(_NAME, "a name")
            calls.begin(named.removeprefix(_PREFIX).rpartition(":")[0] or named)
            yield from reader.skip_space()
            yield from reader.expect(*control.forms(_ARGUMENTS))
            yield from reader.skip_space()
            yield from reader.json_value(calls.write)
            calls.end()
            yield from reader.skip_space()
            yield from reader.expect(*control.forms(_CALL_END))
            yield from reader.skip_space()
            if not (yield from reader.peek()):  # some models end their answer without it
                return
            if (yield from reader.expect(*head, *close)) in close:
                return
