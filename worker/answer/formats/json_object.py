"""Calls as one JSON object each: Hermes and Llama 3."""

from collections.abc import Collection, Sequence
from typing import ClassVar

from worker.answer.calls import CallDeltaBuilder, read_json_call, read_json_head
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, add_json, call_schema, marker
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import LarkGrammarBuilder


class HermesFormat:
    """A section is one call: an opening, a JSON object, a closing marker."""

    name: ClassVar[str] = "hermes"
    open: ClassVar[str] = "<tool_call>"
    close: ClassVar[str] = "</tool_call>"
    markers: ClassVar[tuple[str, ...]] = (open, close)
    openings: ClassVar[tuple[str, ...]] = (open,)

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from read_json_head(reader, names)

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        call = add_json(rules, "call", call_schema(tools, "arguments"))
        opening, closing = marker(control, self.open), marker(control, self.close)
        return rules.add("section", f"{opening} {SPACE} {call} {SPACE} {closing}")

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        yield from reader.expect(*control.forms(self.open))
        yield from read_json_call(reader, calls, arguments_key="arguments")
        yield from reader.skip_space()
        if (yield from reader.peek()):  # some models end an answer without the closing marker
            yield from reader.expect(*control.forms(self.close))


_OPEN = "<|python_tag|>"


class LlamaFormat:
    """A section is JSON objects, separated by `;`."""

    name: ClassVar[str] = "llama3"
    markers: ClassVar[tuple[str, ...]] = (_OPEN,)
    openings: ClassVar[tuple[str, ...]] = (_OPEN, "")

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from read_json_head(reader, names)

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        call = add_json(rules, "call", call_schema(tools, "parameters"))
        others = f'(";" {SPACE} {call})*' if parallel else ""
        return rules.add("section", f"({marker(control, _OPEN)})? {SPACE} {call} {others}")

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        yield from reader.expect(*control.forms(_OPEN), "")
        while True:
            yield from read_json_call(reader, calls, arguments_key="parameters")
            if not (yield from reader.is_next(";")):
                return
            yield from reader.skip_space()
            yield from reader.expect(";")
