"""Nemotron before its third generation: `<TOOLCALL>` and a JSON list."""

from collections.abc import Collection, Sequence
from typing import ClassVar

from worker.answer.calls import CallWriter, read_json_calls, read_json_head
from worker.answer.control import ControlTokens
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, add_json, call_list_schema, marker
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import Rules

_OPEN, _CLOSE = "<TOOLCALL>", "</TOOLCALL>"


class NemotronFormat:
    """A section is a list of JSON objects."""

    name: ClassVar[str] = "nemotron"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_OPEN,)

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.skip_space()
        yield from reader.expect("[")
        yield from read_json_head(reader, names)

    def add_section(
        self, rules: Rules, control: ControlTokens, tools: Sequence[Tool], *, parallel: bool
    ) -> str:
        calls = add_json(rules, "calls", call_list_schema(tools, "arguments", parallel=parallel))
        opening, closing = marker(control, _OPEN), marker(control, _CLOSE)
        return rules.add("section", f"{opening} {SPACE} {calls} {SPACE} {closing}")

    def read_section(
        self, reader: TextReader, calls: CallWriter, control: ControlTokens, tools: Sequence[Tool]
    ) -> Reading[None]:
        yield from reader.expect(*control.forms(_OPEN))
        yield from reader.skip_space()
        yield from read_json_calls(reader, calls, arguments_key="arguments")
        yield from reader.skip_space()
        yield from reader.expect(*control.forms(_CLOSE))
